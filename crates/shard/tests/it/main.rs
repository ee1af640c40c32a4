//! The shard against real programs and sockets.

mod s3;
