//! What the repository ships, tried with the real helm and kubectl on a real API server.

mod chart;
mod migration;
mod program;
