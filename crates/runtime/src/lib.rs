pub mod rights;
