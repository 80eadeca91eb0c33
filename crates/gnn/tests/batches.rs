//! What a step looks at: drawn neighbours, and that batches lead to the gradients of the graph.

use crate::common;

use common::{Fixture, apart, spec};
use hither_core::seed;
use hither_gnn::generate::{self, Family};
use hither_gnn::layer::{Backward, Norm};
use hither_gnn::model::{Kind, Model, Spec, Weights};
use hither_gnn::sample::{Batch, Fanout, Needs, Sampler, draw};
use hither_gnn::{Dataset, Features};
use proptest::prelude::*;

/// The same numbers as a sparse table.
fn sparse(data: &Dataset, with_values: bool) -> Dataset {
    let Features::Dense { values, dim } = &data.features else { panic!("fixtures are dense") };
    let (mut offsets, mut indices, mut kept) = (vec![0_u64], vec![], vec![]);
    for row in values.chunks(*dim) {
        for (index, value) in row.iter().enumerate().filter(|(_, value)| **value > 0.0) {
            indices.push(index as u32);
            kept.push(*value);
        }
        offsets.push(indices.len() as u64);
    }
    let values = with_values.then(|| kept.into());
    let features =
        Features::Sparse { offsets: offsets.into(), indices: indices.into(), values, dim: *dim };
    Dataset { features, ..data.clone() }
}

/// The sparse table with its zeros written out.
fn dense(data: &Dataset) -> Dataset {
    let Features::Sparse { offsets, indices, values, dim } = &data.features else {
        return data.clone();
    };
    let mut rows = vec![0.0; (offsets.len() - 1) * dim];
    for node in 0..offsets.len() - 1 {
        for at in offsets[node] as usize..offsets[node + 1] as usize {
            let value = values.as_ref().map_or(1.0, |values| values[at]);
            rows[node * dim + indices[at] as usize] = value;
        }
    }
    Dataset { features: Features::Dense { values: rows.into(), dim: *dim }, ..data.clone() }
}

fn gradient(model: &Model, weights: &Weights, data: &Dataset, batch: &Batch) -> (f64, Vec<f32>) {
    let mut grads = vec![0.0; weights.params.len()];
    let loss = model.gradient(&mut weights.clone(), data, batch, 0, &mut grads);
    (loss, grads)
}

pub const STACKS: [&[Kind]; 8] = [
    &[Kind::Sage, Kind::Sage],
    &[Kind::Gcn, Kind::Gcn],
    &[Kind::Gat, Kind::Gat],
    &[Kind::Gatv2, Kind::Gatv2],
    &[Kind::Gin, Kind::Gin],
    &[Kind::Linear, Kind::Propagate, Kind::Linear],
    &[Kind::Sage, Kind::Gcn, Kind::Linear],
    &[Kind::Linear, Kind::Linear],
];

#[test]
fn batches_with_all_neighbours_have_the_gradient_of_the_whole_graph() {
    let data = Fixture::open("sage").data;
    let norms = [Norm::Symmetric, Norm::Mean];
    for (stack, norm) in STACKS.iter().flat_map(|stack| norms.map(|norm| (stack, norm))) {
        for data in [data.clone(), sparse(&data, true), sparse(&data, false)] {
            let model = Model::new(Spec { norm, ..spec(stack, &data) }).expect("a model");
            let weights = model.start(3);
            let train = &data.split.train;
            let whole =
                gradient(&model, &weights, &data, &Batch::whole(&data, train, model.needs()));
            let mut sampler = Sampler::new(data.graph.nodes());
            let mut random = seed::stream(0, "test");
            for needs in [model.needs(), Needs { direct: false, ..model.needs() }] {
                let batch = sampler.batch(&data, train.clone(), &Fanout::All, needs, &mut random);
                let (loss, grads) = gradient(&model, &weights, &data, &batch);
                assert!((loss - whole.0).abs() < 1e-5, "{stack:?}: {loss} is not {}", whole.0);
                let off = apart(&grads, &whole.1);
                assert!(off < 1e-5, "{stack:?}: gradients differ by {off}");
            }
        }
    }
}

/// Inference aggregates in blocks and keeps nothing; the numbers are the same.
#[test]
fn inference_and_training_losses_agree() {
    let mut settings = generate::Settings::for_family(Family::NoisyFeatures, 20_000, 1);
    settings.feature_dim = 4;
    let data = generate::generate(&settings).expect("a graph");
    let nodes = &data.split.valid;
    let mut sampler = Sampler::new(data.graph.nodes());
    for stack in STACKS {
        let model = Model::new(spec(stack, &data)).expect("a model");
        let weights = model.start(3);
        let whole = Batch::whole(&data, nodes, model.needs());
        let learnt = gradient(&model, &weights, &data, &whole).0;
        assert_eq!(model.loss(&weights, &data, &whole), learnt, "{stack:?}");
        let mut random = seed::stream(0, "test");
        let batch = sampler.batch(&data, nodes.clone(), &Fanout::All, model.needs(), &mut random);
        let drawn = model.loss(&weights, &data, &batch);
        assert!((drawn - learnt).abs() < 1e-5, "{stack:?}: {drawn} is not {learnt}");
    }
}

/// From their neighbourhoods if the nodes are few, else from the hidden rows of the whole graph.
#[test]
fn outputs_of_some_nodes_are_rows_of_all_outputs() {
    let data = Fixture::open("sage").data;
    for stack in STACKS {
        for data in [data.clone(), sparse(&data, true)] {
            let model = Model::new(spec(stack, &data)).expect("a model");
            let weights = model.start(3);
            let all = model.infer(&weights, &data);
            for nodes in [vec![35, 3, 17], (0..36).rev().collect::<Vec<u32>>()] {
                let row = |node: &u32| &all.logits[*node as usize * all.classes..][..all.classes];
                let expected: Vec<f32> = nodes.iter().flat_map(row).copied().collect();
                let off = apart(&model.infer_rows(&weights, &data, &nodes).logits, &expected);
                assert!(off < 1e-5, "{stack:?}: outputs differ by {off}");
            }
        }
    }
}

#[test]
fn sparse_features_lead_to_the_same_gradients_as_dense_ones() {
    let data = Fixture::open("sage").data;
    for stack in STACKS {
        for sparse in [sparse(&data, true), sparse(&data, false)] {
            let dense = dense(&sparse);
            let model = Model::new(spec(stack, &data)).expect("a model");
            let weights = model.start(4);
            let of = |data: &Dataset| {
                let batch = Batch::whole(data, &data.split.train, model.needs());
                gradient(&model, &weights, data, &batch).1
            };
            let off = apart(&of(&sparse), &of(&dense));
            assert!(off < 1e-5, "{stack:?}: gradients differ by {off}");
        }
    }
}

/// Whatever the gradients hold, a backward pass adds to it: layers may share parameters.
#[test]
fn backward_passes_add_to_the_gradients() {
    let data = Fixture::open("sage").data;
    for kind in [Kind::Sage, Kind::Gcn, Kind::Gat, Kind::Gatv2, Kind::Gin, Kind::Linear] {
        let model = Model::new(spec(&[kind], &data)).expect("a model");
        let params = &model.start(3).params;
        let batch = Batch::whole(&data, &data.split.train, model.needs());
        let (x, hops, layer) = (&batch.input, &batch.hops[..], &model.stages[0].layer);
        let (y, cache) = layer.forward(params, x, hops, true);
        let dy: Vec<f32> = (0..y.len()).map(|at| (at % 7) as f32 / 100.0).collect();
        let added_to = |start: f32| {
            let mut grads = vec![start; params.len()];
            let pass = Backward { params, x, hops, cache: &cache, dy: &dy, needs_dx: false };
            layer.backward(pass, &mut grads);
            grads
        };
        let expected: Vec<f32> = added_to(0.0).iter().map(|grad| grad + 1.0).collect();
        let off = apart(&added_to(1.0), &expected);
        assert!(off < 1e-5, "{kind:?}: gradients differ by {off}");
    }
}

/// Along any direction the loss changes as the gradient says.
#[test]
fn gradients_are_slopes_of_the_loss() {
    const NAMES: [&str; 11] = [
        "sage", "gcn", "gat", "appnp", "mlp", "sage-bn", "sage-bce", "gin", "gatv2", "sage-ln",
        "gcn-res",
    ];
    for name in NAMES {
        let fixture = Fixture::open(name);
        let (data, model) = (&fixture.data, &fixture.model);
        let weights = fixture.weights("param");
        // Fewer neighbours than there are, the same in all passes.
        let mut sampler = Sampler::new(data.graph.nodes());
        let mut random = seed::stream(9, name);
        let train = data.split.train.clone();
        let batch = sampler.batch(data, train, &Fanout::AtMost(2), model.needs(), &mut random);
        let (_, grads) = gradient(model, &weights, data, &batch);
        let length = grads.iter().map(|g| g * g).sum::<f32>().sqrt();
        // Along the gradient itself the slope is its length, far above rounding.
        let step = 3e-3 / length;
        let at = |sign: f32| {
            let mut moved = weights.clone();
            moved.params.iter_mut().zip(&grads).for_each(|(p, g)| *p += sign * step * g);
            gradient(model, &moved, data, &batch).0
        };
        let slope = (at(1.0) - at(-1.0)) / (2.0 * f64::from(step * length));
        let off = (slope / f64::from(length) - 1.0).abs();
        assert!(off < 0.01, "{name}: slope {slope}, gradient {length}");
    }
}

proptest! {
    #[test]
    fn drawn_neighbours_are_some_of_them_each_once(
        edges in prop::collection::vec((0_u32..40, 0_u32..40), 0..400),
        fanout in 1_usize..12,
        seed in any::<u64>(),
    ) {
        let mut data = Fixture::open("sage").data;
        data.graph = hither_gnn::Graph::from_edges(40, &edges).expect("nodes are there");
        data.features = Features::Dense { values: vec![0.0; 40].into(), dim: 1 };
        let needs = Needs { hops: 1, roots: None, direct: true };
        let mut random = seed::stream(seed, "test");
        let seeds: Vec<u32> = (0..40).collect();
        let mut sampler = Sampler::new(40);
        let batch = sampler.batch(&data, seeds, &Fanout::AtMost(fanout), needs, &mut random);
        let csr = batch.hops[0].csr();
        for node in 0..40_u32 {
            let bounds = csr.offsets[node as usize] as usize..csr.offsets[node as usize + 1] as usize;
            let mut drawn = csr.columns[bounds].to_vec();
            let all = data.graph.neighbours(node);
            prop_assert_eq!(drawn.len(), all.len().min(fanout));
            prop_assert!(drawn.iter().all(|other| all.contains(other)));
            drawn.sort_unstable();
            drawn.dedup();
            prop_assert_eq!(drawn.len(), all.len().min(fanout));
        }
    }
}

/// The first number is that of the batch's own nodes.
#[test]
fn each_hop_has_its_own_fanout() {
    let mut data = Fixture::open("sage").data;
    // Every node has edges to all others.
    let edges: Vec<(u32, u32)> = (0..36).flat_map(|u| (0..u).map(move |v| (u, v))).collect();
    data.graph = hither_gnn::Graph::from_edges(36, &edges).expect("nodes are there");
    let mut sampler = Sampler::new(36);
    let mut drawn = |fanout: &[usize], hops: usize| -> Vec<usize> {
        let needs = Needs { hops, roots: None, direct: false };
        let fanout = Fanout::PerHop(fanout.to_vec());
        let mut random = seed::stream(5, "test");
        let batch = sampler.batch(&data, vec![0], &fanout, needs, &mut random);
        // Hops are stored from the input to the output.
        batch.hops.iter().rev().map(|hop| hop.drawn(0)).collect()
    };
    assert_eq!(drawn(&[7, 3, 1], 3), [7, 3, 1]);
    assert_eq!(drawn(&[2, 100], 2), [2, 35]);
    assert_eq!(drawn(&[4, 2], 3), [4, 2, 2]);
}

/// The room for a batch follows from the degrees: `AtMost` of this size times the batch would not
/// fit any memory.
#[test]
fn a_fanout_beyond_all_degrees_draws_all_neighbours() {
    let data = Fixture::open("sage").data;
    let needs = Needs { hops: 2, roots: None, direct: true };
    let mut sampler = Sampler::new(data.graph.nodes());
    let mut sizes = |fanout: &Fanout| -> Vec<usize> {
        let mut random = seed::stream(5, "test");
        let batch = sampler.batch(&data, vec![0, 1, 2], fanout, needs, &mut random);
        batch.hops.iter().map(|hop| hop.csr().columns.len()).collect()
    };
    assert_eq!(sizes(&Fanout::AtMost(usize::MAX / 2)), sizes(&Fanout::All));
}

/// A star's centre has 20 neighbours; each is drawn as often as any other.
#[test]
fn no_neighbour_is_drawn_more_often_than_others() {
    let mut data = Fixture::open("sage").data;
    let edges: Vec<(u32, u32)> = (1..21).map(|leaf| (0, leaf)).collect();
    data.graph = hither_gnn::Graph::from_edges(36, &edges).expect("nodes are there");
    let needs = Needs { hops: 1, roots: None, direct: true };
    let mut sampler = Sampler::new(36);
    let mut counts = [0_u32; 21];
    const DRAWS: u32 = 20_000;
    let mut random = seed::stream(5, "test");
    for _ in 0..DRAWS {
        let batch = sampler.batch(&data, vec![0], &Fanout::AtMost(5), needs, &mut random);
        batch.hops[0].csr().columns.iter().for_each(|leaf| counts[*leaf as usize] += 1);
    }
    // A quarter of the draws each; five standard deviations are about 306.
    let fair = |count: &u32| count.abs_diff(DRAWS / 4) < 310;
    assert!(counts[1..].iter().all(fair), "{counts:?}");
}

#[test]
fn a_draw_of_all_is_all() {
    let mut random = seed::stream(1, "test");
    assert_eq!(draw(&[3, 5, 9], 7, &mut random), [3, 5, 9]);
    let mut some = draw(&[3, 5, 9, 11], 3, &mut random);
    some.sort_unstable();
    some.dedup();
    assert_eq!(some.len(), 3);
}
