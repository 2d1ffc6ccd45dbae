//! `pacegate bench`: a load generator for rate limiters that also checks their decisions.

mod check;
mod cpu;
mod history;
mod keys;
mod load;
mod report;
mod target;

pub use self::{
    check::{Rule, Windows, check},
    keys::{Costs, CostsError, KeyDistribution, KeysError},
    load::{Length, Load, LoadResult, Rate},
    report::{BenchReport, Check},
    target::{Dialect, Reading, Script, Target, TargetOptions},
};
