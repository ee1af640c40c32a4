//! Decisions as data in, data out. Names begin with the row of the specification they show.

mod build;
mod decide;
mod event;
mod property;
mod status;
mod world;
