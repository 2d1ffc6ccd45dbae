//! `pacegate top`: the live view of a server in a terminal. [`Live`] is the data from the server, [`View`]
//! the state of the display, which is drawn on a screen or printed as plain text.

mod data;
mod draw;
mod plain;
mod run;
#[cfg(test)]
mod tests;
mod view;
mod words;

pub use self::{data::Live, plain::plain, run::run, view::View};
