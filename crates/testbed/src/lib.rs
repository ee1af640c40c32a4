pub mod fault;
