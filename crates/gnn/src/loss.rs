//! Cross-entropy of classes; binary cross-entropy of yes-or-no answers. Both as means.

use crate::Labels;

/// The mean loss of `rows` of the outputs, which are these `nodes`; its gradient is added to `dy`. A node counts
/// by the weight of its class, if `weights` has one for each.
pub fn loss(
    logits: &[f32],
    labels: &Labels,
    weights: Option<&[f32]>,
    rows: &[u32],
    nodes: &[u32],
    mut dy: Option<&mut [f32]>,
) -> f64 {
    let count = labels.count();
    let weigh = Weigh::new(labels, weights, nodes);
    let mut total = 0.0;
    for (row, node) in rows.iter().zip(nodes) {
        let at = *row as usize * count..(*row as usize + 1) * count;
        let weight = weigh.weight(*node);
        let gradient = dy.as_mut().map(|dy| (&mut dy[at.clone()], weight / weigh.total as f32));
        total += f64::from(weight) * row_loss(&logits[at], labels, *node, gradient);
    }
    total / weigh.total
}

/// The weight of each node in a mean.
struct Weigh<'a> {
    by_class: Option<(&'a [u32], &'a [f32])>,
    total: f64,
}

impl<'a> Weigh<'a> {
    fn new(labels: &'a Labels, weights: Option<&'a [f32]>, nodes: &[u32]) -> Self {
        let by_class = match (labels, weights) {
            (Labels::Classes { of, .. }, Some(weights)) => Some((&of[..], weights)),
            _ => None,
        };
        let mut weigh = Self { by_class, total: nodes.len().max(1) as f64 };
        if by_class.is_some() {
            let total: f64 = nodes.iter().map(|node| f64::from(weigh.weight(*node))).sum();
            // All nodes of a batch may be of classes that do not count.
            weigh.total = if total > 0.0 { total } else { 1.0 };
        }
        weigh
    }

    fn weight(&self, node: u32) -> f32 {
        self.by_class.map_or(1.0, |(of, weights)| weights[of[node as usize] as usize])
    }
}

fn row_loss(
    logits: &[f32],
    labels: &Labels,
    node: u32,
    gradient: Option<(&mut [f32], f32)>,
) -> f64 {
    match labels {
        Labels::Classes { of, .. } => {
            let class = of[node as usize] as usize;
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            if let Some((dy, share)) = gradient {
                for (at, dy) in dy.iter_mut().enumerate() {
                    let right = f32::from(u8::from(at == class));
                    *dy += share * ((logits[at] - largest).exp() / sum - right);
                }
            }
            f64::from(sum.ln() + largest - logits[class])
        }
        Labels::Tasks { of, count } => {
            let answers = &of[node as usize * count..(node as usize + 1) * count];
            let each = 1.0 / *count as f32;
            if let Some((dy, share)) = gradient {
                for at in 0..*count {
                    let yes = 1.0 / (1.0 + (-logits[at]).exp());
                    dy[at] += share * each * (yes - f32::from(answers[at]));
                }
            }
            let loss = |(logit, answer): (&f32, &u8)| {
                // log(1 + eˣ) − x·answer, without overflow.
                f64::from(
                    logit.max(0.0) - logit * f32::from(*answer) + (-logit.abs()).exp().ln_1p(),
                )
            };
            logits.iter().zip(answers).map(loss).sum::<f64>() * f64::from(each)
        }
    }
}
