//! Sparse matrices in compressed rows, as SciPy has them.

use std::path::Path;

use hither_data::{Npz, Tensor};

use super::arrays::{NamedArray, array};
use super::bad;
use crate::{Error, Features, Graph};

/// A sparse matrix by rows. Every index is below `columns`; offsets rise from 0 to the number of indices.
pub struct SparseMatrix {
    pub columns: usize,
    pub offsets: Vec<u64>,
    pub indices: Vec<u32>,
    /// As many as indices.
    pub values: Option<Vec<f32>>,
}

/// The arrays that SciPy keeps a matrix in, by the names that a file has for them.
pub struct Parts<'a> {
    pub shape: MatrixShape<'a>,
    pub offsets: NamedArray<'a>,
    pub indices: NamedArray<'a>,
    pub values: Option<NamedArray<'a>>,
}

/// Numbers of rows and columns.
pub enum MatrixShape<'a> {
    Known([usize; 2]),
    Told(NamedArray<'a>),
}

impl MatrixShape<'_> {
    fn read(&self) -> Result<[usize; 2], Error> {
        let told = match self {
            Self::Known(sizes) => return Ok(*sizes),
            Self::Told(told) => told,
        };
        let numbers = told.integers()?;
        let sizes: Option<Vec<usize>> =
            numbers.iter().map(|size| usize::try_from(*size).ok()).collect();
        let sizes = sizes.and_then(|sizes| <[usize; 2]>::try_from(sizes).ok());
        sizes.ok_or_else(|| {
            told.bad(format!("is {numbers:?}; expected two sizes, rows and columns"))
        })
    }
}

impl<'a> Parts<'a> {
    /// `names`: of shape, offsets, indices and values.
    pub fn find(npz: &'a Npz, names: &'a [String; 4]) -> Result<Self, Error> {
        let [shape, offsets, indices, values] = names;
        let values = npz.contains(values).then(|| array(npz, values)).transpose()?;
        Ok(Self {
            shape: MatrixShape::Told(array(npz, shape)?),
            offsets: array(npz, offsets)?,
            indices: array(npz, indices)?,
            values,
        })
    }

    pub fn read(self) -> Result<SparseMatrix, Error> {
        let [rows, columns] = self.shape.read()?;
        if rows.max(columns) >= u32::MAX as usize {
            let problem = format!("is {rows} × {columns}; 32 bits cannot number that");
            return Err(self.indices.bad(problem));
        }
        let entries = self.indices.tensor.elements();
        let offsets = self.offsets.offsets(rows, entries)?;
        let indices = self.indices.ids(columns, "a column")?;
        let place = |at: usize| {
            let row = offsets.partition_point(|start| *start <= at as u64) - 1;
            format!("row {row}, column {}", indices[at])
        };
        let values = match self.values {
            Some(values) => {
                Some(values.sized(entries, "one per index")?.floats_at(place)?.to_vec())
            }
            None => None,
        };
        Ok(SparseMatrix { columns, offsets, indices, values })
    }
}

impl SparseMatrix {
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// A graph with an edge for each entry that is not zero.
    pub fn graph(self, path: &Path) -> Result<Graph, Error> {
        let (nodes, columns) = (self.rows(), self.columns);
        if nodes != columns {
            let problem = format!("the adjacency matrix is {nodes} × {columns}; expected a square");
            return Err(bad(path, problem));
        }
        let mut edges = Vec::with_capacity(self.indices.len());
        for row in 0..nodes {
            let range = self.offsets[row] as usize..self.offsets[row + 1] as usize;
            for at in range {
                if self.values.as_ref().is_none_or(|values| values[at] != 0.0) {
                    edges.push((row as u32, self.indices[at]));
                }
            }
        }
        let graph = Graph::from_edges(nodes, &edges);
        graph.ok_or_else(|| bad(path, format!("an edge leads to a node that is not below {nodes}")))
    }

    pub fn features(mut self) -> Features {
        self.tidy();
        let ones = self.values.as_ref().is_some_and(|v| v.iter().all(|value| *value == 1.0));
        let values = self.values.filter(|_| !ones).map(Into::into);
        let (offsets, indices) = (self.offsets.into(), self.indices.into());
        Features::Sparse { offsets, indices, values, dim: self.columns }
    }

    /// Sorts each row. Repeated entries are added up, as SciPy does, or count once if there are no
    /// values.
    fn tidy(&mut self) {
        let rises = |row: &[u32]| row.windows(2).all(|pair| pair[0] < pair[1]);
        let range = |bounds: &[u64]| bounds[0] as usize..bounds[1] as usize;
        if self.offsets.windows(2).all(|bounds| rises(&self.indices[range(bounds)])) {
            return;
        }
        let mut end = 0;
        let mut row: Vec<(u32, f32)> = vec![];
        for at in 0..self.rows() {
            let range = range(&self.offsets[at..at + 2]);
            let value = |at: usize| self.values.as_ref().map_or(1.0, |values| values[at]);
            row.clear();
            row.extend(range.map(|at| (self.indices[at], value(at))));
            row.sort_by_key(|(index, _)| *index);
            let start = end;
            self.offsets[at] = start as u64;
            for (index, value) in &row {
                if end > start && self.indices[end - 1] == *index {
                    if let Some(values) = &mut self.values {
                        values[end - 1] += value;
                    }
                    continue;
                }
                self.indices[end] = *index;
                if let Some(values) = &mut self.values {
                    values[end] = *value;
                }
                end += 1;
            }
        }
        let rows = self.rows();
        self.offsets[rows] = end as u64;
        self.indices.truncate(end);
        if let Some(values) = &mut self.values {
            values.truncate(end);
        }
    }
}

/// Features from a dense matrix.
pub fn dense(named: &NamedArray<'_>) -> Result<Features, Error> {
    let [_, dim] = named.table()?;
    Ok(Features::Dense { values: named.floats()?, dim })
}

/// A single whole number, such as a count.
pub fn single(named: &NamedArray<'_>) -> Result<usize, Error> {
    let Tensor { shape, .. } = &named.tensor;
    match named.integers()?[..] {
        [number] => {
            usize::try_from(number).map_err(|_| named.bad(format!("is {number}; expected a count")))
        }
        _ => Err(named.bad(format!("has shape {shape:?}; expected a single number"))),
    }
}
