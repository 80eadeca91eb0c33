//! Arrays of other programs, converted to numbers that are in their range.

use std::borrow::Cow;
use std::path::Path;

use hither_data::{Array, Dtype, Npz, Tensor};

use super::labels;
use crate::{Error, Labels, Metric};

/// An array, and what messages call it.
pub struct NamedArray<'a> {
    pub path: &'a Path,
    pub name: &'a str,
    pub tensor: Tensor,
}

pub fn array<'a>(npz: &'a Npz, name: &'a str) -> Result<NamedArray<'a>, Error> {
    Ok(NamedArray { path: npz.path(), name, tensor: npz.array(name)? })
}

impl NamedArray<'_> {
    pub fn bad(&self, problem: impl std::fmt::Display) -> Error {
        let problem = format!("array `{}` {problem}", self.name);
        Error::File { path: self.path.into(), problem }
    }

    /// The sizes of an array of two dimensions.
    pub fn table(&self) -> Result<[usize; 2], Error> {
        <[usize; 2]>::try_from(&self.tensor.shape[..]).map_err(|_| {
            let shape = &self.tensor.shape;
            self.bad(format!("has shape {shape:?}; expected rows and columns"))
        })
    }

    /// Fails unless the array has this many elements.
    pub fn sized(self, elements: usize, of: &str) -> Result<Self, Error> {
        let found = self.tensor.elements();
        if found != elements {
            return Err(self.bad(format!("has {found} elements; expected {elements}, {of}")));
        }
        Ok(self)
    }

    /// Integers of any type, or booleans as 0 and 1; 64-bit ones where they lie.
    pub fn integers(&self) -> Result<Cow<'_, [i64]>, Error> {
        if self.tensor.dtype == Dtype::Bool {
            return Ok(self.tensor.bytes.iter().map(|byte| i64::from(*byte != 0)).collect());
        }
        self.tensor
            .as_i64()
            .ok_or_else(|| self.bad(format!("is {}; expected integers", self.tensor.dtype)))
    }

    /// Integers from 0 to below `limit`; `what` says what they number.
    pub fn ids(&self, limit: usize, what: &str) -> Result<Vec<u32>, Error> {
        let in_range = |(at, id): (usize, &i64)| {
            usize::try_from(*id).ok().filter(|id| *id < limit).map(|id| id as u32).ok_or_else(
                || self.bad(format!("has {id} at index {at}; expected {what} below {limit}")),
            )
        };
        self.integers()?.iter().enumerate().map(in_range).collect()
    }

    /// Row starts: `rows` + 1 numbers that rise from 0 to `entries`.
    pub fn offsets(&self, rows: usize, entries: usize) -> Result<Vec<u64>, Error> {
        let offsets = self.integers()?;
        if offsets.len() != rows + 1 {
            let found = offsets.len();
            let expected = rows + 1;
            return Err(
                self.bad(format!("has {found} elements; expected {expected} for {rows} rows"))
            );
        }
        if offsets[0] != 0 || offsets[rows] != entries as i64 {
            let (first, last) = (offsets[0], offsets[rows]);
            return Err(self.bad(format!("runs from {first} to {last}; expected 0 to {entries}")));
        }
        if let Some(row) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(self.bad(format!("falls at row {row}")));
        }
        Ok(offsets.iter().map(|offset| *offset as u64).collect())
    }

    /// Numbers of any type as fp32; fp32 arrays are used where they lie.
    pub fn floats(&self) -> Result<Array<f32>, Error> {
        self.floats_at(|at| self.place(at))
    }

    /// As [`NamedArray::floats`]; `place` says where an element stands, for the message about it.
    pub fn floats_at(&self, place: impl Fn(usize) -> String) -> Result<Array<f32>, Error> {
        let mapped = (self.tensor.dtype == Dtype::F32 && cfg!(target_endian = "little"))
            .then(|| Array::<f32>::map(self.tensor.bytes.clone()))
            .flatten();
        let values = match (mapped, self.tensor.as_f32()) {
            (Some(mapped), _) => mapped,
            (None, Some(values)) => values.into_owned().into(),
            (None, None) => {
                self.integers()?.iter().map(|value| *value as f32).collect::<Vec<_>>().into()
            }
        };
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => {
                let (value, place) = (values[at], place(at));
                Err(self.bad(format!("has {value} at {place}; expected a finite number")))
            }
            None => Ok(values),
        }
    }

    /// An element's row and column, or its index if the array has no rows.
    fn place(&self, at: usize) -> String {
        match self.tensor.shape[..] {
            [_, columns] => format!("row {}, column {}", at / columns, at % columns),
            _ => format!("index {at}"),
        }
    }

    /// One class per node; negative numbers and NaN stand for none.
    pub fn classes(&self, nodes: usize) -> Result<Labels, Error> {
        let of: Vec<i64> = match self.tensor.as_f32() {
            Some(values) => {
                let of: Result<_, usize> = values
                    .iter()
                    .enumerate()
                    .map(|(at, value)| labels::integer_of((*value).into()).ok_or(at))
                    .collect();
                of.map_err(|at| {
                    let value = values[at];
                    self.bad(format!(
                        "has the label {value} at node {at}; node classification needs classes \
                         0, 1, 2, …: is this a regression target?"
                    ))
                })?
            }
            None => self.integers()?.into_owned(),
        };
        if of.len() != nodes {
            return Err(self.bad(format!("has {} labels; there are {nodes} nodes", of.len())));
        }
        labels::from_integers(&of).map_err(|problem| self.bad(problem))
    }
}

/// Heterophilous graphs with two classes are scored by ROC-AUC, as in their paper.
pub fn metric(labels: &Labels) -> Metric {
    if labels.count() == 2 { Metric::RocAuc } else { Metric::Accuracy }
}
