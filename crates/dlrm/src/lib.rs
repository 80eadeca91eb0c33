//! Recommendation models.
