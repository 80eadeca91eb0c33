//! Small datasets, and what PyTorch Geometric makes of them.
#![allow(dead_code)]

use std::path::Path;

use hither_data::Checkpoint;
use hither_gnn::layer::Norm;
use hither_gnn::model::{Kind, Model, Spec, Weights};
use hither_gnn::{Dataset, Features, Graph, Labels, Metric, Split};

pub struct Fixture {
    pub file: Checkpoint,
    pub data: Dataset,
    pub model: Model,
}

impl Fixture {
    pub fn open(name: &str) -> Self {
        let path = Path::new("tests/fixtures").join(format!("{name}.safetensors"));
        let file = Checkpoint::open(path).expect("a fixture");
        let ints = |name: &str| file.tensors[name].as_i64().expect("integers").into_owned();
        let edges: Vec<(u32, u32)> =
            ints("edges").chunks(2).map(|edge| (edge[0] as u32, edge[1] as u32)).collect();
        let x = file.tensors["x"].as_f32().expect("numbers").into_owned();
        let [nodes, dim] = file.tensors["x"].shape[..] else { panic!("x has rows") };
        let said = |name: &str| file.metadata[name].clone();
        let classes: usize = said("classes").parse().expect("a number");
        let labels = match file.tensors.get("tasks") {
            Some(tasks) => Labels::Tasks { of: tasks.bytes.to_vec().into(), count: classes },
            None => {
                let of: Vec<u32> = ints("labels").iter().map(|class| *class as u32).collect();
                Labels::Classes { of: of.into(), count: classes }
            }
        };
        let train: Vec<u32> = ints("train").iter().map(|node| *node as u32).collect();
        let metric = match labels {
            Labels::Classes { .. } => Metric::Accuracy,
            Labels::Tasks { .. } => Metric::F1Micro,
        };
        let mut graph = Graph::from_edges(nodes, &edges).expect("a graph");
        if let Some(weights) = file.tensors.get("weights") {
            let weights = weights.as_f32().expect("numbers");
            let list = edges.iter().zip(&weights[..]).map(|((u, v), weight)| (*u, *v, *weight));
            graph = graph.with_weights(list).expect("a weight per edge");
        }
        let data = Dataset {
            name: name.into(),
            graph,
            features: Features::Dense { values: x.into(), dim },
            labels,
            split: Split { train, valid: vec![], test: vec![] },
            metric,
            class_weights: None,
            links: None,
            node_names: None,
            class_names: None,
            notes: vec![],
            original: None,
            parts: None,
        };
        let is_said = |name: &str| file.metadata.get(name).is_some_and(|text| text == "true");
        let kinds = said("model").replace("appnp", "propagate");
        let number = |name: &str, or: f32| {
            file.metadata.get(name).map_or(or, |text| text.parse().expect("a number"))
        };
        let spec = Spec {
            layers: kinds.split(',').map(|kind| kind.parse().expect("a layer")).collect(),
            inputs: dim,
            hidden: number("hidden", 8.0) as usize,
            outputs: classes,
            heads: number("heads", 1.0) as usize,
            norm: if said("norm") == "sym" { Norm::Symmetric } else { Norm::Mean },
            batch_norm: said("batch_norm") == "true",
            layer_norm: is_said("layer_norm"),
            residual: is_said("residual"),
            steps: number("steps", 5.0) as usize,
            alpha: number("alpha", 0.2),
            ..Spec::default()
        };
        let model = Model::new(spec).expect("a model");
        Self { file, data, model }
    }

    /// Tensors by name behind a prefix, as weights of the model.
    pub fn weights(&self, prefix: &str) -> Weights {
        let mut weights = self.model.start(0);
        for (pieces, values) in
            [(&self.model.params, &mut weights.params), (&self.model.stats, &mut weights.stats)]
        {
            for piece in pieces {
                let Some(tensor) = self.file.tensors.get(&format!("{prefix}.{}", piece.name))
                else {
                    assert!(prefix == "grad", "{prefix}.{} is missing", piece.name);
                    continue;
                };
                assert_eq!(tensor.shape, piece.shape, "{}", piece.name);
                let numbers = tensor.as_f32().expect("numbers");
                values[piece.at.clone()].copy_from_slice(&numbers);
            }
        }
        weights
    }

    pub fn numbers(&self, name: &str) -> Vec<f32> {
        self.file.tensors[name].as_f32().expect("numbers").into_owned()
    }
}

pub fn spec(layers: &[Kind], data: &Dataset) -> Spec {
    Spec {
        layers: layers.into(),
        inputs: data.features.dim(),
        hidden: 6,
        outputs: data.labels.count(),
        heads: 2,
        steps: 3,
        ..Spec::default()
    }
}

/// The largest difference, relative to the largest number.
pub fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(1.0_f32, |largest, value| largest.max(value.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}
