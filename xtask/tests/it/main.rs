//! What the repository ships, tried with the real helm and kubectl on a real API server.

mod chart;
mod clusterctl;
mod migration;
mod program;
