//! Cutting a graph into parts.
