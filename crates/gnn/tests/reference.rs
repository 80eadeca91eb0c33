//! Training steps and models against plain formulas, in double precision: as PyTorch defines them.

use std::sync::Arc;

use hither_gnn::config::{Batch, ClassWeights, TrainBy};
use hither_gnn::generate::{self, Family};
use hither_gnn::model::{Kind, Model, Spec, Weights};
use hither_gnn::optim::Method;
use hither_gnn::run::Run;
use hither_gnn::schedule::Schedule;
use hither_gnn::{Dataset, Features, Labels, TrainConfig, loss};

fn graph() -> Dataset {
    let family = generate::Settings::for_family(Family::NoisyFeatures, 90, 3);
    let settings = generate::Settings { communities: 3, degree: 6.0, feature_dim: 5, ..family };
    generate::generate(&settings).expect("a graph")
}

fn rows(data: &Dataset) -> Vec<Vec<f64>> {
    let Features::Dense { values, dim } = &data.features else { panic!("dense features") };
    values.chunks(*dim).map(|row| row.iter().map(|value| f64::from(*value)).collect()).collect()
}

fn classes(data: &Dataset) -> Vec<usize> {
    let Labels::Classes { of, .. } = &data.labels else { panic!("classes") };
    of.iter().map(|class| *class as usize).collect()
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shares: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f64 = shares.iter().sum();
    shares.iter().map(|share| share / sum).collect()
}

/// `cross_entropy` with `weight`: the weighted mean of −ln p, divided by the sum of the weights.
#[test]
fn weighted_cross_entropy_is_the_weighted_mean() {
    let labels = Labels::Classes { of: vec![0, 2, 1, 0].into(), count: 3 };
    let weights = [0.5, 2.0, 0.25];
    let logits = [0.3_f32, -1.0, 2.0, 0.1, 0.2, 0.3, 1.5, -0.5, 0.0, -2.0, 0.7, 0.4];
    let nodes = [0, 1, 2, 3];
    let of = [0_usize, 2, 1, 0];
    let total: f64 = of.iter().map(|class| f64::from(weights[*class])).sum();
    let (mut expected, mut slope) = (0.0, vec![0.0; 12]);
    for (row, class) in of.iter().enumerate() {
        let shares =
            softmax(&logits[row * 3..][..3].iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
        let weight = f64::from(weights[*class]) / total;
        expected -= weight * shares[*class].ln();
        for (at, share) in shares.iter().enumerate() {
            slope[row * 3 + at] = weight * (share - f64::from(u8::from(at == *class)));
        }
    }
    let mut found = vec![0.0_f32; 12];
    let value = loss::loss(&logits, &labels, Some(&weights), &nodes, &nodes, Some(&mut found));
    assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
    let alone = loss::loss(&logits, &labels, Some(&weights), &nodes, &nodes, None);
    assert_eq!(alone, value);
    for (found, expected) in found.iter().zip(&slope) {
        assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} is not {expected}");
    }
}

/// Logistic regression by whole steps of SGD, with everything that changes a step: class weights, clipping as
/// `clip_grad_norm_` does it, weight decay and a schedule.
#[test]
fn a_clipped_weighted_and_scheduled_run_takes_the_steps_of_its_formulas() {
    let mut config = TrainConfig::default();
    (config.model.model, config.model.layers) = (Some("mlp".into()), Some(1));
    config.target.class_weights = Some(ClassWeights::Balanced);
    (config.steps.local_steps, config.steps.lr) = (2, 0.5);
    (config.steps.batch, config.steps.clip) = (Some(Batch::Full), Some(0.2));
    (config.steps.optimiser, config.steps.weight_decay) = (Method::Sgd, 0.01);
    config.steps.lr_schedule = Schedule::Cosine;
    (config.run.rounds, config.by) = (4, TrainBy::Single);
    let mut run = Run::new(&config, graph()).expect("a run");
    let (data, model) = (run.trainer.data.clone(), run.trainer.model.clone());
    let number = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
    let mut params = number(&run.trainer.global.params);
    let (x, of) = (rows(&data), classes(&data));
    let weights = number(data.class_weights.as_ref().expect("balanced"));
    let (inputs, outputs) = (5, model.spec.outputs);
    let at = |name: &str| {
        let piece = model.params.iter().find(|piece| piece.name.ends_with(name));
        piece.expect("a piece").at.start
    };
    let (matrix, bias) = (at("weight"), at("bias"));
    let mut was_clipped = false;
    for round in 0..4 {
        let rate = 0.5 * (1.0 + (std::f64::consts::PI * f64::from(round) / 4.0).cos()) / 2.0;
        for _ in 0..2 {
            let mut grads = vec![0.0; params.len()];
            let total: f64 = data.split.train.iter().map(|n| weights[of[*n as usize]]).sum();
            for node in data.split.train.iter().map(|node| *node as usize) {
                let logit = |out: usize| {
                    let row = &params[matrix + out * inputs..][..inputs];
                    params[bias + out] + row.iter().zip(&x[node]).map(|(w, x)| w * x).sum::<f64>()
                };
                let shares = softmax(&(0..outputs).map(logit).collect::<Vec<_>>());
                for (out, share) in shares.iter().enumerate() {
                    let is_own = f64::from(u8::from(out == of[node]));
                    let slope = weights[of[node]] / total * (share - is_own);
                    grads[bias + out] += slope;
                    for (at, x) in x[node].iter().enumerate() {
                        grads[matrix + out * inputs + at] += slope * x;
                    }
                }
            }
            let norm = grads.iter().map(|grad| grad * grad).sum::<f64>().sqrt();
            let factor = (0.2 / (norm + 1e-6)).min(1.0);
            was_clipped |= factor < 1.0;
            for (param, grad) in params.iter_mut().zip(&grads) {
                *param -= rate * (0.01 * *param + factor * grad);
            }
        }
        run.step(&|| 0.0).expect("a round");
    }
    assert!(was_clipped);
    for (found, expected) in run.trainer.global.params.iter().zip(&params) {
        assert!((f64::from(*found) - expected).abs() < 2e-5, "{found} is not {expected}");
    }
}

/// Three layers without neighbours: h₁ = relu(L₁ x), h₂ = relu(L₂ h₁) + h₁, y = L₃ h₂.
#[test]
fn residual_layers_add_their_input_behind_the_activation() {
    let data = Arc::new(graph());
    let spec = Spec {
        layers: vec![Kind::Linear; 3],
        inputs: 5,
        hidden: 4,
        outputs: data.labels.count(),
        residual: true,
        ..Spec::default()
    };
    let model = Model::new(spec).expect("a model");
    let weights: Weights = model.start(9);
    let linear = |layer: usize, x: &[f64]| -> Vec<f64> {
        let [weight, bias] = [&model.params[2 * layer], &model.params[2 * layer + 1]];
        let (outputs, inputs) = (weight.shape[0], weight.shape[1]);
        let number = |at: usize| f64::from(weights.params[at]);
        let output = |out: usize| {
            let row = (0..inputs).map(|at| number(weight.at.start + out * inputs + at) * x[at]);
            row.sum::<f64>() + number(bias.at.start + out)
        };
        (0..outputs).map(output).collect()
    };
    let relu = |x: Vec<f64>| x.into_iter().map(|value| value.max(0.0)).collect::<Vec<f64>>();
    let logits = model.infer(&weights, &data).logits;
    for (x, found) in rows(&data).iter().zip(logits.chunks(model.spec.outputs)) {
        let first = relu(linear(0, x));
        let second = relu(linear(1, &first));
        let sum: Vec<f64> = second.iter().zip(&first).map(|(a, b)| a + b).collect();
        for (found, expected) in found.iter().zip(linear(2, &sum)) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} is not {expected}");
        }
    }
}
