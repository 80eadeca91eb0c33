//! The same numbers as PyTorch Geometric: outputs, losses, gradients, and where three steps lead.

use crate::common;

use common::{Fixture, apart};
use hither_data::Checkpoint;
use hither_gnn::links::metric::LinkMetric;
use hither_gnn::links::pairs::{Loss, NegativesBy, Pairs};
use hither_gnn::model::{Kind, Model, Spec, Weights};
use hither_gnn::optim::{Method, Optimiser};
use hither_gnn::sample::Batch;
use hither_gnn::task::{Goal, Objective};
use hither_gnn::{Dataset, Features, Graph, Labels, Links, Metric, Split};

pub const CASES: [&str; 16] = [
    "sage",
    "gcn",
    "gat",
    "appnp",
    "mlp",
    "sage-linear",
    "gcn-bn",
    "sage-bn",
    "sage-bce",
    "gcn-mean",
    "gin",
    "gatv2",
    "sage-ln",
    "gcn-res",
    "gcn-weighted",
    "appnp-weighted",
];
const CLOSE: f32 = 1e-5;

#[test]
fn logits_and_gradients_are_those_of_pytorch() {
    for name in CASES {
        let fixture = Fixture::open(name);
        let mut weights = fixture.weights("param");
        let outputs = fixture.model.infer(&weights, &fixture.data);
        let off = apart(&outputs.logits, &fixture.numbers("logits_eval"));
        assert!(off <= CLOSE, "{name}: logits differ by {off}");

        let (data, model) = (&fixture.data, &fixture.model);
        let batch = Batch::whole(data, &data.split.train, model.needs());
        let mut grads = vec![0.0; weights.params.len()];
        let pass = 0;
        let loss = model.gradient(&mut weights, data, &batch, pass, &mut grads);
        let expected = fixture.numbers("loss")[0];
        assert!((loss as f32 - expected).abs() <= CLOSE, "{name}: loss {loss}, not {expected}");
        for piece in &model.params {
            let expected = fixture.numbers(&format!("grad.{}", piece.name));
            let off = apart(&grads[piece.at.clone()], &expected);
            assert!(off <= CLOSE, "{name}: gradient of {} differs by {off}", piece.name);
        }
    }
}

#[test]
fn three_steps_lead_where_pytorch_gets_to() {
    for name in CASES {
        for (method, rate, prefix) in [(Method::Adam, 0.01, "adam3"), (Method::Sgd, 0.1, "sgd3")] {
            let fixture = Fixture::open(name);
            let (data, model) = (&fixture.data, &fixture.model);
            let mut weights = fixture.weights("param");
            let batch = Batch::whole(data, &data.split.train, model.needs());
            let mut grads = vec![0.0; weights.params.len()];
            let mut optimiser = Optimiser::new(method, 5e-4, grads.len());
            for _ in 0..3 {
                let pass = 0;
                model.gradient(&mut weights, data, &batch, pass, &mut grads);
                optimiser.step(rate, &mut weights.params, &grads);
            }
            let expected = fixture.weights(prefix);
            let (params, stats) =
                (apart(&weights.params, &expected.params), apart(&weights.stats, &expected.stats));
            assert!(params <= CLOSE, "{name}, {prefix}: parameters differ by {params}");
            assert!(stats <= CLOSE, "{name}, {prefix}: statistics differ by {stats}");
        }
    }
}

/// LightGCN of PyTorch Geometric, with its own loss (BPR) and with the sampled softmax of cosines.
#[test]
fn links_have_the_embeddings_losses_and_gradients_of_pytorch() {
    let file = Checkpoint::open("tests/fixtures/lightgcn.safetensors").expect("a fixture");
    let ids = |name: &str| -> Vec<u32> {
        let numbers = file.tensors[name].as_i64().expect("integers");
        numbers.iter().map(|number| *number as u32).collect()
    };
    let numbers = |name: &str| file.tensors[name].as_f32().expect("numbers").into_owned();
    let said = |name: &str| file.metadata[name].as_str();
    let [nodes, dim] = file.tensors["param.embedding.weight"].shape[..] else { panic!("rows") };
    let edges: Vec<(u32, u32)> = ids("edges").chunks(2).map(|edge| (edge[0], edge[1])).collect();
    let graph = Graph::from_edges(nodes, &edges).expect("a graph");
    let labels = Labels::Classes { of: vec![u32::MAX; nodes].into(), count: 0 };
    let (split, features) = (Split::default(), Features::one_hot(nodes));
    let mut data =
        Dataset::new("lightgcn".into(), graph, features, labels, split, Metric::Accuracy);
    let users = Some(said("users").parse().expect("a number"));
    data.links = Some(Links { users, ..Links::default() });
    let spec = Spec {
        layers: vec![Kind::Embedding, Kind::Light],
        inputs: nodes,
        hidden: dim,
        outputs: dim,
        steps: said("layers").parse().expect("a number"),
        ..Spec::default()
    };
    let model = Model::new(spec).expect("a model");
    let mut weights = Weights { params: numbers("param.embedding.weight"), stats: vec![] };
    let off = apart(&model.infer(&weights, &data).logits, &numbers("logits_eval"));
    assert!(off <= CLOSE, "embeddings differ by {off}");
    for (loss, name, negatives) in [(Loss::Bpr, "bpr", "own"), (Loss::Softmax, "softmax", "shared")]
    {
        let negatives = ids(negatives);
        let temperature = said("temperature").parse().expect("a number");
        let objective = Objective {
            loss,
            negatives: negatives.len(),
            negatives_by: NegativesBy::Nodes,
            temperature,
            metric: LinkMetric::Recall(5),
            seed: 0,
        };
        let pairs = Pairs::from_nodes(&objective, &data, ids("sources"), ids("targets"), negatives);
        let mut batch = Batch::whole(&data, &[], model.needs());
        batch.goal = Goal::Links(pairs);
        let mut grads = vec![0.0; weights.params.len()];
        let found = model.gradient(&mut weights, &data, &batch, 0, &mut grads);
        let expected = numbers(&format!("loss_{name}"))[0];
        assert!((found as f32 - expected).abs() <= CLOSE, "{name}: loss {found}, not {expected}");
        let off = apart(&grads, &numbers(&format!("grad_{name}")));
        assert!(off <= CLOSE, "{name}: gradients differ by {off}");
    }
}
