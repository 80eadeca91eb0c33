//! What layers say that they read is what they do, and every kind is in every list of tests.

use std::collections::BTreeSet;

use hither_gnn::generate::{self, Family};
use hither_gnn::layer::Norm;
use hither_gnn::model::{Kind, Model, Spec};
use hither_gnn::{Dataset, Features};

use crate::batches::STACKS;
use crate::common::Fixture;
use crate::pytorch::CASES;

/// A name of every kind, for sets.
fn names(kinds: impl IntoIterator<Item = Kind>) -> BTreeSet<&'static str> {
    kinds.into_iter().map(Kind::name).collect()
}

#[test]
fn every_layer_is_compared_with_pytorch_and_sampled() {
    // Those with a row per node are compared and sampled in links.rs.
    let rows = [Kind::Embedding, Kind::Light];
    let compared = CASES.iter().flat_map(|name| Fixture::open(name).model.spec.layers.clone());
    assert_eq!(names(compared.chain(rows)), names(Kind::ALL));
    let sampled = STACKS.iter().flat_map(|stack| stack.iter().copied());
    assert_eq!(names(sampled.chain(rows)), names(Kind::ALL));
}

fn graph() -> Dataset {
    let family = generate::Settings::for_family(Family::NoisyFeatures, 120, 5);
    let settings = generate::Settings { communities: 3, degree: 6.0, ..family };
    generate::generate(&settings).expect("a graph")
}

/// A model with a layer of a kind, and the graph that it takes.
fn model_of(kind: Kind, norm: Norm) -> (Model, Dataset) {
    let mut data = graph();
    let layers = match kind {
        Kind::Propagate => vec![Kind::Linear, Kind::Propagate, Kind::Linear],
        Kind::Embedding | Kind::Light => vec![Kind::Embedding, Kind::Light],
        kind => vec![kind, kind],
    };
    if layers[0] == Kind::Embedding {
        data.features = Features::one_hot(data.graph.nodes());
    }
    let (inputs, outputs) = (data.features.dim(), data.labels.count());
    let spec = Spec { layers, inputs, outputs, hidden: 8, norm, ..Spec::default() };
    (Model::new(spec).expect("a model"), data)
}

const ALL: [(Kind, Norm); 10] = [
    (Kind::Sage, Norm::Symmetric),
    (Kind::Gcn, Norm::Symmetric),
    (Kind::Gcn, Norm::Mean),
    (Kind::Gat, Norm::Symmetric),
    (Kind::Gatv2, Norm::Symmetric),
    (Kind::Gin, Norm::Symmetric),
    (Kind::Propagate, Norm::Symmetric),
    (Kind::Linear, Norm::Symmetric),
    (Kind::Embedding, Norm::Symmetric),
    (Kind::Light, Norm::Symmetric),
];

/// A layer that ignores weights must say so, or a graph that has some would be accepted in silence.
#[test]
fn layers_that_read_weights_of_edges_and_no_others_say_so() {
    assert_eq!(names(ALL.map(|(kind, _)| kind)), names(Kind::ALL));
    for (kind, norm) in ALL {
        let (model, data) = model_of(kind, norm);
        let weights = model.start(3);
        let list = (0..data.graph.nodes() as u32).flat_map(|u| {
            let own = data.graph.neighbours(u).iter().filter(move |v| u < **v);
            own.map(move |v| (u, *v, 1.0 + ((u + v) % 5) as f32))
        });
        let graph = data.graph.clone().with_weights(list).expect("a weight per edge");
        let weighted = Dataset { graph, ..data.clone() };
        let [plain, other] = [&data, &weighted].map(|data| model.infer(&weights, data).logits);
        let hops = model.needs().hops;
        assert_eq!(plain != other, hops > 0 && model.reads_edge_weights(), "{}", kind.name());
    }
}

/// Rows of some nodes, by whichever way a layer allows, are those of all nodes.
#[test]
fn some_rows_are_those_of_all_rows() {
    for (kind, norm) in ALL {
        let (model, data) = model_of(kind, norm);
        let (weights, dim) = (model.start(3), model.spec.outputs);
        let all = model.infer(&weights, &data).logits;
        // Few nodes are computed from their neighbourhoods, many from the rows of all.
        for nodes in [vec![7, 3], (0..120).rev().collect::<Vec<u32>>()] {
            let some = model.infer_rows(&weights, &data, &nodes).logits;
            for (node, row) in nodes.iter().zip(some.chunks(dim)) {
                let expected = &all[*node as usize * dim..][..dim];
                let near = row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
                assert!(near, "{}: node {node}", kind.name());
            }
        }
    }
}
