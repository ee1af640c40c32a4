//! The vendor's own programs.
