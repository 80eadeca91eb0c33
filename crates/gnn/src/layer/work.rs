//! How many multiply–adds a layer takes, counted from shapes. This mirrors what `forward` and
//! `backward` of each layer do; what is linear in rows alone (biases, activations) is left out.

use hither_core::record::train::Work;

use super::mean::project_first;
use super::{Layer, Rows};
use crate::sample::Hop;

/// The shape of a layer's input.
#[derive(Clone, Copy)]
pub struct Shape<'a> {
    pub count: usize,
    pub dim: usize,
    /// Where the entries of sparse rows begin and end; `None` for dense rows.
    offsets: Option<&'a [u64]>,
}

impl<'a> Shape<'a> {
    pub fn dense(count: usize, dim: usize) -> Self {
        Self { count, dim, offsets: None }
    }

    pub fn from_rows(rows: &'a Rows<'_>) -> Self {
        let offsets = match rows {
            Rows::Dense { .. } => None,
            Rows::Sparse { offsets, .. } => Some(&offsets[..]),
        };
        Self { count: rows.count(), dim: rows.dim(), offsets }
    }

    pub fn is_sparse(&self) -> bool {
        self.offsets.is_some()
    }

    /// The first `rows` rows times a matrix: forward, and again for the gradient of the matrix.
    fn project(&self, rows: usize, outputs: usize) -> Work {
        match self.offsets {
            None => Work::products(rows, self.dim, outputs),
            Some(offsets) => Work::sums((offsets[rows] - offsets[0]) as usize, outputs),
        }
    }
}

/// How far a pass goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    Forward,
    /// Forward, and backward to the layer's parameters.
    Backward,
    /// And further, to the layer's input.
    BackwardToInput,
}

impl Layer {
    /// Multiply–adds over one batch.
    pub fn work(&self, x: Shape, hops: &[Hop], passes: Passes) -> Work {
        match self {
            Self::Linear(layer) => {
                let outputs = layer.bias.len();
                let product = Work::products(x.count, x.dim, outputs);
                repeat(x.project(x.count, outputs), product, passes)
            }
            Self::Gcn(layer) => {
                let hop = &hops[0];
                convolve(x, hop, entries(hop) + hop.targets(), layer.bias.len(), passes)
            }
            Self::Sage(layer) => {
                let (hop, outputs) = (&hops[0], layer.bias.len());
                let own = Work::products(hop.targets(), x.dim, outputs);
                convolve(x, hop, entries(hop), outputs, passes)
                    + repeat(x.project(hop.targets(), outputs), own, passes)
            }
            Self::Embedding(layer) => {
                let project = x.project(x.count, layer.table.dim);
                repeat(project, Work::default(), passes)
            }
            Self::Propagate(_) | Self::Light(_) => {
                let summed: usize = hops.iter().map(|hop| entries(hop) + hop.targets()).sum();
                let once = Work::sums(summed, x.dim);
                if passes == Passes::BackwardToInput { once + once } else { once }
            }
            Self::Gin(layer) => {
                let (hop, outputs) = (&hops[0], layer.second.bias.len());
                let second = Work::products(hop.targets(), outputs, outputs);
                let back =
                    if passes == Passes::Forward { Work::default() } else { second + second };
                convolve(x, hop, entries(hop) + hop.targets(), outputs, passes) + second + back
            }
            Self::Gatv2(layer) => {
                let (hop, width) = (&hops[0], layer.heads.count * layer.heads.dim);
                let edges = Work::sums(entries(hop) + hop.targets(), width);
                // A score is a sum over a row, as is what it weighs; backward each comes twice more.
                let sums = if passes == Passes::Forward { 2 } else { 6 };
                let own = x.project(hop.targets(), width);
                let product = Work::products(x.count, x.dim, width);
                let own_product = Work::products(hop.targets(), x.dim, width);
                (0..sums).map(|_| edges).sum::<Work>()
                    + repeat(x.project(x.count, width), product, passes)
                    + repeat(own, own_product, passes)
            }
            Self::Attention(layer) => {
                let (hop, width) = (&hops[0], layer.weight.outputs);
                let edges = Work::sums(entries(hop) + hop.targets(), width);
                let scores = Work::sums(x.count + hop.targets(), width);
                let product = Work::products(x.count, x.dim, width);
                let forward = edges + scores;
                // Backward: gradients of edge weights and of rows; of vectors and of rows.
                let back = edges + edges + scores + scores;
                let more = if passes == Passes::Forward { Work::default() } else { back };
                forward + more + repeat(x.project(x.count, width), product, passes)
            }
        }
    }
}

fn entries(hop: &Hop) -> usize {
    let offsets = hop.csr().offsets;
    (offsets[offsets.len() - 1] - offsets[0]) as usize
}

/// A product with parameters: forward, for their gradient, and for that of the input.
fn repeat(project: Work, input_gradient: Work, passes: Passes) -> Work {
    match passes {
        Passes::Forward => project,
        Passes::Backward => project + project,
        Passes::BackwardToInput => project + project + input_gradient,
    }
}

/// A sum over `summed` rows and a product, in the order that the layer chooses.
fn convolve(x: Shape, hop: &Hop, summed: usize, outputs: usize, passes: Passes) -> Work {
    if project_first(x.is_sparse(), x.dim, hop, outputs) {
        let product = Work::products(x.count, x.dim, outputs);
        let sum = Work::sums(summed, outputs);
        let sums = if passes == Passes::Forward { sum } else { sum + sum };
        sums + repeat(x.project(x.count, outputs), product, passes)
    } else {
        let product = Work::products(hop.targets(), x.dim, outputs);
        let sum = Work::sums(summed, x.dim);
        let sums = if passes == Passes::BackwardToInput { sum + sum } else { sum };
        sums + repeat(product, product, passes)
    }
}

#[cfg(test)]
mod tests {
    use crate::generate::{self, Family};
    use crate::model::{Kind, Model, Spec};
    use crate::sample::Batch;

    /// Counted by hand from the formulas of the layers.
    #[test]
    fn whole_graph_steps_take_what_their_formulas_say() {
        let settings = generate::Settings {
            communities: 4,
            feature_dim: 12,
            ..generate::Settings::for_family(Family::NoisyFeatures, 200, 1)
        };
        let data = generate::generate(&settings).expect("a graph");
        let (n, e) = (200, 2 * data.graph.edges() as u64);
        let spec = Spec {
            layers: vec![Kind::Gcn, Kind::Sage],
            inputs: 12,
            hidden: 16,
            outputs: 8,
            ..Spec::default()
        };
        let model = Model::new(spec).expect("a model");
        let batch = Batch::whole(&data, &[], model.needs());
        let forward = model.work(&batch, false);
        // 16 outputs are more than 12 inputs, so the first layer sums first; 8 are fewer than 16.
        let (gcn, sage) = ((e + n) * 12, e * 8);
        assert_eq!(forward.sums, gcn + sage);
        assert_eq!(forward.products, n * 12 * 16 + 2 * n * 16 * 8);
        // The first layer's input needs no gradient.
        let both = model.work(&batch, true);
        assert_eq!(both.sums, gcn + 2 * sage);
        assert_eq!(both.products, 2 * n * 12 * 16 + 6 * n * 16 * 8);
    }
}
