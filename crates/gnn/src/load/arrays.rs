//! Arrays of other programs as numbers that are in their range.

use std::path::Path;

use hither_data::{Array, Dtype, Npz, Tensor};

use crate::dataset::UNLABELLED;
use crate::{Error, Labels, Metric};

/// An array with the names that messages tell.
pub struct Named<'a> {
    pub path: &'a Path,
    pub name: &'a str,
    pub tensor: Tensor,
}

pub fn array<'a>(npz: &'a Npz, name: &'a str) -> Result<Named<'a>, Error> {
    Ok(Named { path: npz.path(), name, tensor: npz.array(name)? })
}

impl Named<'_> {
    pub fn bad(&self, problem: impl std::fmt::Display) -> Error {
        let problem = format!("array `{}` {problem}", self.name);
        Error::File { path: self.path.into(), problem }
    }

    /// The sizes of an array of two dimensions.
    pub fn table(&self) -> Result<[usize; 2], Error> {
        <[usize; 2]>::try_from(&self.tensor.shape[..]).map_err(|_| {
            let shape = &self.tensor.shape;
            self.bad(format!("is of shape {shape:?}; expected rows and columns"))
        })
    }

    /// Fails unless the array has this many elements.
    pub fn sized(self, elements: usize, of: &str) -> Result<Self, Error> {
        let found = self.tensor.elements();
        if found != elements {
            return Err(self.bad(format!("has {found} elements; {elements} expected: {of}")));
        }
        Ok(self)
    }

    /// Any kind of integer, truth values among them.
    pub fn integers(&self) -> Result<Vec<i64>, Error> {
        if self.tensor.dtype == Dtype::Bool {
            return Ok(self.tensor.bytes.iter().map(|byte| i64::from(*byte != 0)).collect());
        }
        let wide = self.tensor.as_i64().ok_or_else(|| {
            self.bad(format!("is of {}; integers are expected", self.tensor.dtype))
        })?;
        Ok(wide.into_owned())
    }

    /// Integers from 0 to below `limit`, which counts `what`.
    pub fn ids(&self, limit: usize, what: &str) -> Result<Vec<u32>, Error> {
        let in_range =
            |(at, id): (usize, &i64)| {
                usize::try_from(*id).ok().filter(|id| *id < limit).map(|id| id as u32).ok_or_else(
                    || self.bad(format!("has {id} at {at}; expected {what} below {limit}")),
                )
            };
        self.integers()?.iter().enumerate().map(in_range).collect()
    }

    /// Where rows begin: `rows` + 1 numbers that rise from 0 to `entries`.
    pub fn offsets(&self, rows: usize, entries: usize) -> Result<Vec<u64>, Error> {
        let offsets = self.integers()?;
        if offsets.len() != rows + 1 {
            let found = offsets.len();
            return Err(self.bad(format!("has {found} elements; {rows} rows need one more")));
        }
        if offsets[0] != 0 || offsets[rows] != entries as i64 {
            let (first, last) = (offsets[0], offsets[rows]);
            return Err(self.bad(format!("runs from {first} to {last}; expected 0 to {entries}")));
        }
        if let Some(row) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(self.bad(format!("falls at row {row}")));
        }
        Ok(offsets.into_iter().map(|offset| offset as u64).collect())
    }

    /// Numbers of any kind as fp32, in place where they are so already.
    pub fn floats(&self) -> Result<Array<f32>, Error> {
        let mapped = (self.tensor.dtype == Dtype::F32 && cfg!(target_endian = "little"))
            .then(|| Array::<f32>::map(self.tensor.bytes.clone()))
            .flatten();
        let values = match (mapped, self.tensor.as_f32()) {
            (Some(mapped), _) => mapped,
            (None, Some(values)) => values.into_owned().into(),
            (None, None) => {
                self.integers()?.into_iter().map(|value| value as f32).collect::<Vec<_>>().into()
            }
        };
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => Err(self.bad(format!("has {} at {at}; expected a number", values[at]))),
            None => Ok(values),
        }
    }

    /// One class a node; what is negative or not a number stands for none.
    pub fn classes(&self, nodes: usize) -> Result<Labels, Error> {
        let of: Vec<i64> = match self.tensor.as_f32() {
            // OGB's larger datasets have nodes without a class, and NaN for it.
            Some(values) => {
                let whole = |value: &f32| match value {
                    value if value.is_nan() => Some(-1),
                    value if value.fract() == 0.0 => Some(*value as i64),
                    _ => None,
                };
                let of: Option<_> = values.iter().map(whole).collect();
                of.ok_or_else(|| self.bad("has fractions; expected classes, 0, 1, 2, …"))?
            }
            None => self.integers()?,
        };
        if of.len() != nodes {
            return Err(self.bad(format!("has {} elements; there are {nodes} nodes", of.len())));
        }
        classes(&of).map_err(|problem| self.bad(problem))
    }
}

/// From classes as integers, negative for none.
pub fn classes(of: &[i64]) -> Result<Labels, String> {
    let count = of.iter().max().map_or(0, |max| max.saturating_add(1).max(0)) as usize;
    // Outputs of a model are as many as classes: a stray number must not make it huge.
    if count > of.len() {
        let node = of.iter().position(|class| *class == count as i64 - 1).unwrap_or_default();
        let (class, nodes) = (count - 1, of.len());
        return Err(format!("gives node {node} the class {class}; there are but {nodes} nodes"));
    }
    let class = |class: &i64| u32::try_from(*class).unwrap_or(UNLABELLED);
    Ok(Labels::Classes { of: of.iter().map(class).collect::<Vec<_>>().into(), count })
}

/// Two classes are told apart by a score, more by the best of them.
pub fn metric(labels: &Labels) -> Metric {
    if labels.count() == 2 { Metric::RocAuc } else { Metric::Accuracy }
}
