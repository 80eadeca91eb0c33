//! A model made of embeddings alone: its score is the sum of the dot products of a request's rows.
//!
//! The interaction of a DLRM computes these products beside others that have the dense features in them. The
//! bottom MLP has zeros for weights, so that those are 0, and the top MLP is one layer that adds up the rest.

use std::path::Path;

use hither_data::{Checkpoint, Dtype as Element, Tensor};
use hither_kernels::bag::{Dtype, Pooling};

use crate::Error;
use crate::model::{Interaction, Part, Spec, TableSpec, write};

/// What tensors of one kind of node are called.
const ALIKE: &str = "embeddings";

/// Rows of nodes, by kind.
pub struct Embeddings<'a> {
    kinds: Vec<(&'a str, &'a Tensor)>,
}

impl<'a> Embeddings<'a> {
    /// Takes every matrix of a file for the rows of one kind of node. `logits` of classes are none.
    pub fn read(file: &'a Checkpoint) -> Result<Self, Error> {
        let bad = |problem: String| Error::Spec { path: file.path.clone(), problem };
        let named = file.tensors.iter().filter(|(name, _)| *name != "logits");
        // Users before items, as training writes them.
        let mut kinds: Vec<(&str, &Tensor)> =
            named.map(|(name, rows)| (name.as_str(), rows)).collect();
        kinds.sort_by_key(|(name, _)| *name != "user");
        let Some((_, first)) = kinds.first() else {
            return Err(bad(
                "it holds no embeddings; expected matrices such as `user` and `item`".into()
            ));
        };
        if let [(name, _)] = kinds[..]
            && name != ALIKE
        {
            return Err(bad(format!(
                "it holds only `{name}`; expected `{ALIKE}`, or two kinds such as `user` and `item`"
            )));
        }
        let dim = first.shape.get(1).copied().unwrap_or(0);
        for (name, rows) in &kinds {
            let fits = rows.dtype == Element::F32
                && matches!(rows.shape[..], [count, d] if count > 0 && d == dim);
            if !fits || dim == 0 {
                let (dtype, shape) = (rows.dtype, &rows.shape);
                return Err(bad(format!(
                    "tensor `{name}` is {dtype} {shape:?}; expected fp32 rows, all of one length"
                )));
            }
        }
        Ok(Self { kinds })
    }

    /// The shape of the model.
    pub fn spec(&self, name: &str, sigmoid: bool) -> Spec {
        let table = |name: &str, rows: &Tensor, shares: Option<&str>| TableSpec {
            name: name.into(),
            rows: rows.shape[0],
            dim: rows.shape[1],
            dtype: Dtype::F32,
            pooling: Pooling::Sum,
            padding: None,
            shares: shares.map(Into::into),
        };
        let tables = match self.kinds[..] {
            [(ALIKE, rows)] => {
                vec![table("source", rows, None), table("target", rows, Some("source"))]
            }
            _ => self.kinds.iter().map(|(name, rows)| table(name, rows, None)).collect(),
        };
        let dim = tables[0].dim;
        let mut spec = Spec {
            name: name.into(),
            interaction: Interaction::Dot,
            sigmoid,
            bottom: vec![1, dim],
            top: vec![],
            cross: None,
            projection: None,
            tables,
        };
        spec.top = vec![spec.interaction_width(), 1];
        spec
    }

    /// Writes the model; `done` is told the bytes of tables as they are written.
    pub fn write(
        &self,
        spec: &Spec,
        dir: &Path,
        force: bool,
        done: &dyn Fn(u64),
    ) -> Result<(), Error> {
        write(dir, spec, force, |part, entry, writer| {
            if let Part::Weight(table) = part {
                let bytes = &self.kinds[table].1.bytes;
                writer.write(bytes)?;
                done(bytes.len() as u64);
                return Ok(());
            }
            let mut values = vec![0.0_f32; entry.shape.iter().product()];
            if let Part::TopWeight(0) = part {
                products_of_rows(spec).for_each(|at| values[at] = 1.0);
            }
            Ok(writer.write(bytemuck::cast_slice(&values))?)
        })
    }
}

/// Where the interaction puts the products of two tables' rows: behind the dense features, pair by pair, each
/// row with the dense features first.
fn products_of_rows(spec: &Spec) -> impl Iterator<Item = usize> {
    let first = spec.bottom_width();
    (1..=spec.tables.len()).flat_map(move |row| {
        let before = row * (row - 1) / 2;
        (1..row).map(move |column| first + before + column)
    })
}
