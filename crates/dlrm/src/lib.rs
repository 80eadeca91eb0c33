//! Recommendation models.

pub mod error;
pub mod generate;
pub mod import;
pub mod model;

pub use error::Error;
pub use model::Model;
