//! Embedding bags.
