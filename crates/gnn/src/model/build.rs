//! From a description to layers with places in the vector of parameters.

use super::{Kind, Model, Named, Spec, Stage, Start, Table};
use crate::layer::{
    Attention, Embedding, Gatv2, Gcn, Gin, Heads, Layer, Light, Linear, Norm, ParamMatrix,
    Propagate, Sage,
};
use crate::normalisation::{BatchNorm, LayerNorm, Normalisation};

/// More parameters than a server's memory would hold a few copies of are a mistake.
const PARAMS_MAX: usize = 1 << 31;

pub fn model(spec: Spec) -> Result<Model, String> {
    check(&spec)?;
    let mut model = Model { spec: spec.clone(), stages: vec![], params: vec![], stats: vec![] };
    let mut inputs = spec.inputs;
    for (index, kind) in spec.layers.iter().enumerate() {
        let last = index + 1 == spec.layers.len();
        let outputs = match kind {
            Kind::Propagate | Kind::Light => inputs,
            _ if last => spec.outputs,
            _ => spec.hidden,
        };
        let layer = Maker { model: &mut model, index, inputs, outputs, last }.layer(*kind);
        let plain = last || matches!(kind, Kind::Propagate | Kind::Embedding | Kind::Light);
        let normalisation = match (spec.batch_norm, spec.layer_norm) {
            _ if plain => None,
            (true, _) => Some(Normalisation::Batch(batch_norm(&mut model, index, outputs))),
            (_, true) => Some(Normalisation::Layer(layer_norm(&mut model, index, outputs))),
            _ => None,
        };
        // Features may be sparse, and are seldom as wide as hidden rows: no layer adds those.
        let residual = spec.residual && !plain && index > 0 && inputs == outputs;
        model.stages.push(Stage { layer, normalisation, activate: !plain, residual, outputs });
        inputs = outputs;
    }
    match model.params.last() {
        Some(named) if named.at.end > PARAMS_MAX => {
            Err(format!("{} parameters are too many; take fewer hidden units", named.at.end))
        }
        _ => Ok(model),
    }
}

fn check(spec: &Spec) -> Result<(), String> {
    let layers = &spec.layers;
    if layers.is_empty() || layers.len() > 64 {
        return Err(format!("a model of {} layers; take 1 to 64", layers.len()));
    }
    if layers[0] == Kind::Propagate || layers.last() == Some(&Kind::Propagate) {
        return Err("propagation has no weights: it must stand between other layers".into());
    }
    if layers[1..].contains(&Kind::Embedding) {
        return Err("an embedding must be the first layer: it stands for features".into());
    }
    if layers.contains(&Kind::Light) && *layers != [Kind::Embedding, Kind::Light] {
        return Err(
            "`light` follows an embedding, and nothing follows it: use --model lightgcn".into()
        );
    }
    if spec.inputs == 0 || spec.outputs == 0 || spec.hidden == 0 {
        return Err("inputs, hidden units and outputs must be at least 1".into());
    }
    let too_wide = |n: usize| n > 1 << 24;
    let inputs = if layers[0] == Kind::Embedding { 1 } else { spec.inputs };
    if [inputs, spec.hidden, spec.outputs].into_iter().any(too_wide) {
        return Err("inputs, hidden units and outputs must be below 16 million".into());
    }
    if !(0.0..1.0).contains(&spec.dropout) {
        return Err(format!("dropout is {}; expected at least 0 and below 1", spec.dropout));
    }
    if !(0.0..=1.0).contains(&spec.alpha) {
        return Err(format!("alpha is {}; expected 0 to 1", spec.alpha));
    }
    if spec.steps == 0 || spec.steps > 64 {
        return Err(format!("{} steps of propagation; take 1 to 64", spec.steps));
    }
    if spec.heads == 0 {
        return Err("attention needs at least one head".into());
    }
    if spec.batch_norm && spec.layer_norm {
        return Err("a model has batch norms or layer norms, not both".into());
    }
    let has_heads = |kind: &Kind| matches!(kind, Kind::Gat | Kind::Gatv2);
    if layers.iter().any(has_heads) && !spec.hidden.is_multiple_of(spec.heads) {
        return Err(format!(
            "{} hidden units cannot be shared by {} heads",
            spec.hidden, spec.heads
        ));
    }
    Ok(())
}

/// Gives a layer its parameters, in the order and by the names that PyTorch Geometric has.
struct Maker<'a> {
    model: &'a mut Model,
    index: usize,
    inputs: usize,
    outputs: usize,
    last: bool,
}

impl Maker<'_> {
    fn layer(mut self, kind: Kind) -> Layer {
        let norm = self.model.spec.norm;
        let (inputs, outputs) = (self.inputs, self.outputs);
        // As PyTorch's Linear begins; graph convolution and attention begin with Glorot's.
        let linear = Start::Uniform(1.0 / (inputs as f32).sqrt());
        match kind {
            Kind::Sage => {
                let neighbours = self.matrix("lin_l.weight", outputs, linear);
                let bias = self.vector("lin_l.bias", &[outputs], linear);
                let own = self.matrix("lin_r.weight", outputs, linear);
                Layer::Sage(Sage { neighbours, own, bias })
            }
            Kind::Gcn => {
                let bias = self.vector("bias", &[outputs], Start::Constant(0.0));
                let weight = self.matrix("lin.weight", outputs, glorot(inputs, outputs));
                Layer::Gcn(Gcn { weight, bias, norm })
            }
            Kind::Gat | Kind::Gatv2 => self.attention(kind),
            Kind::Gin => {
                let weight = self.matrix("nn.lins.0.weight", outputs, linear);
                let bias = self.vector("nn.lins.0.bias", &[outputs], linear);
                let sum = Gcn { weight, bias, norm: Norm::Sum };
                let hidden = Start::Uniform(1.0 / (outputs as f32).sqrt());
                let at = self.vector("nn.lins.1.weight", &[outputs, outputs], hidden);
                let weight = ParamMatrix { at, outputs, inputs: outputs };
                let bias = self.vector("nn.lins.1.bias", &[outputs], hidden);
                Layer::Gin(Gin { sum, second: Linear { weight, bias } })
            }
            Kind::Propagate => {
                let (alpha, steps) = (self.model.spec.alpha, self.model.spec.steps);
                // PyTorch Geometric's APPNP knows no other.
                Layer::Propagate(Propagate { alpha, steps, norm: Norm::Symmetric })
            }
            Kind::Embedding => {
                // A standard deviation of 0.1, as in LightGCN.
                let start = Start::Uniform(0.1 * 3_f32.sqrt());
                let at = add(
                    &mut self.model.params,
                    "embedding.weight".into(),
                    &[inputs, outputs],
                    start,
                );
                Layer::Embedding(Embedding { table: Table { at, dim: outputs } })
            }
            Kind::Light => Layer::Light(Light { steps: self.model.spec.steps }),
            Kind::Linear => {
                let weight = self.matrix("weight", outputs, linear);
                let bias = self.vector("bias", &[outputs], linear);
                Layer::Linear(Linear { weight, bias })
            }
        }
    }

    /// A layer of attention, in its first or its second version.
    fn attention(&mut self, kind: Kind) -> Layer {
        let (count, inputs, outputs) = (self.model.spec.heads, self.inputs, self.outputs);
        let concat = !self.last;
        let dim = if concat { outputs / count } else { outputs };
        let (heads, width) = (Heads { count, dim, concat }, count * dim);
        let (zero, all) = (Start::Constant(0.0), glorot(inputs, width));
        // Glorot's of a tensor [1, heads, dim].
        let score = glorot(count, dim);
        if kind == Kind::Gat {
            let source = self.vector("att_src", &[1, count, dim], score);
            let target = self.vector("att_dst", &[1, count, dim], score);
            let bias = self.vector("bias", &[outputs], zero);
            let weight = self.matrix("lin.weight", width, all);
            return Layer::Attention(Attention { heads, weight, source, target, bias });
        }
        let score = self.vector("att", &[1, count, dim], score);
        let bias = self.vector("bias", &[outputs], zero);
        let source = self.matrix("lin_l.weight", width, all);
        let source_bias = self.vector("lin_l.bias", &[width], zero);
        let target = self.matrix("lin_r.weight", width, all);
        let target_bias = self.vector("lin_r.bias", &[width], zero);
        let source = Linear { weight: source, bias: source_bias };
        let target = Linear { weight: target, bias: target_bias };
        Layer::Gatv2(Gatv2 { heads, source, target, score, bias })
    }

    fn matrix(&mut self, name: &str, outputs: usize, start: Start) -> ParamMatrix {
        let inputs = self.inputs;
        let at = self.vector(name, &[outputs, inputs], start);
        ParamMatrix { at, outputs, inputs }
    }

    fn vector(&mut self, name: &str, shape: &[usize], start: Start) -> std::ops::Range<usize> {
        let name = format!("convs.{}.{name}", self.index);
        add(&mut self.model.params, name, shape, start)
    }
}

fn batch_norm(model: &mut Model, index: usize, dim: usize) -> BatchNorm {
    let name = |piece: &str| format!("norms.{index}.module.{piece}");
    let one = Start::Constant(1.0);
    let zero = Start::Constant(0.0);
    BatchNorm {
        scale: add(&mut model.params, name("weight"), &[dim], one),
        shift: add(&mut model.params, name("bias"), &[dim], zero),
        mean: add(&mut model.stats, name("running_mean"), &[dim], zero),
        variance: add(&mut model.stats, name("running_var"), &[dim], one),
    }
}

/// The range of Glorot and Bengio for a matrix of this shape.
fn glorot(rows: usize, columns: usize) -> Start {
    Start::Uniform((6.0 / (rows + columns) as f32).sqrt())
}

fn layer_norm(model: &mut Model, index: usize, dim: usize) -> LayerNorm {
    let name = |piece: &str| format!("norms.{index}.{piece}");
    LayerNorm {
        scale: add(&mut model.params, name("weight"), &[dim], Start::Constant(1.0)),
        shift: add(&mut model.params, name("bias"), &[dim], Start::Constant(0.0)),
    }
}

fn add(
    pieces: &mut Vec<Named>,
    name: String,
    shape: &[usize],
    start: Start,
) -> std::ops::Range<usize> {
    let begin = pieces.last().map_or(0, |piece| piece.at.end);
    let at = begin..begin + shape.iter().product::<usize>();
    pieces.push(Named { name, shape: shape.into(), at: at.clone(), start });
    at
}
