//! Rules of other simulators, kept to the digit so that their published results can be checked.

pub mod muri;
