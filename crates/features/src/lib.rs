//! One set of dependency features for every build.
//!
//! Cargo compiles a package once for each set of features, and everything that depends on it again. The tests, xtask
//! and the production image select different crates of ours, so without this crate they would ask for different sets
//! and compile Kubernetes' types three times. It holds no code: its manifest is all there is to it.
