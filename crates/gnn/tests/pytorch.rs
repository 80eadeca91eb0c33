//! The same numbers as PyTorch Geometric: outputs, losses, gradients, and where three steps lead.

mod common;

use common::{Fixture, apart};
use hither_gnn::model::Pass;
use hither_gnn::optim::{Method, Optimiser};
use hither_gnn::sample::Batch;

const CASES: [&str; 10] = [
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
        let pass = Pass::Learn { dropout_seed: 0 };
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
                let pass = Pass::Learn { dropout_seed: 0 };
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
