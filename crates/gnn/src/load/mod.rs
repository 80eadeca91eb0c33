//! Readers of other people's graphs, and our own form.
