//! The live view of a service in a terminal: what it is told ([`Live`]), what is made of it ([`View`]), how that is
//! drawn, and the same as plain text.

mod data;
mod draw;
mod plain;
mod run;
#[cfg(test)]
mod tests;
mod view;
mod words;

pub(crate) use self::{data::Live, plain::plain, run::run, view::View};
