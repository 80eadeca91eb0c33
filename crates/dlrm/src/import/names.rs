//! Finds the parts of a model among the tensors of a checkpoint, by their names alone.

use std::collections::BTreeSet;

use hither_data::Checkpoint;

use crate::Error;

/// The program whose names, and so whose conventions, a checkpoint follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// facebookresearch/dlrm: products of the lower triangle row by row, a sigmoid at the end.
    Facebook,
    /// TorchRec's DLRM and DLRM_DCN: products of the upper triangle, logits at the end.
    Torchrec,
}

/// The names of a model's tensors in their order.
#[derive(Debug)]
pub struct Names {
    pub family: Family,
    /// Tables by their own name and that of their tensor.
    pub tables: Vec<(String, String)>,
    /// Layers by the part of their names before `.weight` and `.bias`.
    pub bottom: Vec<String>,
    pub top: Vec<String>,
    /// W, V and bias.
    pub cross: Vec<[String; 3]>,
    /// Layers of the left and the right MLP of a projection.
    pub projection: [Vec<String>; 2],
    /// FBGEMM's modules of quantised tables, by the part before the names of their tensors.
    pub batched: Vec<String>,
    /// Tensors that are not part of the model, such as an optimiser's.
    pub ignored: Vec<String>,
}

const COLLECTION: &str = "sparse_arch.embedding_bag_collection.";
const BAGS: &str = "sparse_arch.embedding_bag_collection.embedding_bags.";

impl Names {
    pub fn find(checkpoint: &Checkpoint) -> Result<Self, Error> {
        let names: BTreeSet<&str> = checkpoint.tensors.keys().map(String::as_str).collect();
        let (family, prefix) = family(&names).ok_or_else(|| {
            let found: Vec<&str> = names.iter().take(4).copied().collect();
            let found =
                if found.is_empty() { "no tensors at all".into() } else { found.join(", ") };
            let problem = format!(
                "not a known model: expected tensors such as `emb_l.0.weight` \
                 (facebookresearch/dlrm) or `{BAGS}TABLE.weight` (TorchRec); found {found}"
            );
            Error::Import { path: checkpoint.path.clone(), problem }
        })?;
        let own: BTreeSet<&str> =
            names.iter().filter_map(|name| name.strip_prefix(prefix)).collect();
        let mut found = match family {
            Family::Facebook => facebook(&own),
            Family::Torchrec => torchrec(&own, checkpoint, prefix),
        };
        found.add_prefix(prefix);
        found.check(checkpoint, prefix)?;
        Ok(found)
    }

    fn add_prefix(&mut self, prefix: &str) {
        let names = self.tables.iter_mut().map(|(_, tensor)| tensor);
        let projection = self.projection.iter_mut().flatten();
        let layers = self.bottom.iter_mut().chain(&mut self.top).chain(projection);
        let modules = self.cross.iter_mut().flatten().chain(&mut self.batched);
        for name in names.chain(layers).chain(modules) {
            name.insert_str(0, prefix);
        }
    }

    /// The tables' names, as errors list them.
    pub fn known_tables(&self) -> String {
        let names: Vec<&str> = self.tables.iter().take(40).map(|(name, _)| name.as_str()).collect();
        names.join(", ") + if self.tables.len() > names.len() { ", …" } else { "" }
    }

    /// A value of --tables that shares the first table, as an example.
    pub fn example_tables(&self) -> String {
        let names = || self.tables.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = names().take(1).chain(names().take(3)).collect();
        names.join(",") + if self.tables.len() > 3 { ",…" } else { "" }
    }

    /// Checks that no tensor is missing and none is left over: a tensor of the model that is not
    /// understood would change what the model computes.
    fn check(&mut self, checkpoint: &Checkpoint, prefix: &str) -> Result<(), Error> {
        for name in checkpoint.tensors.keys() {
            if let Some(problem) = name.strip_prefix(prefix).and_then(|own| trick(own, name)) {
                return Err(Error::Import { path: checkpoint.path.clone(), problem });
            }
        }
        let mut used: BTreeSet<String> = self.tables.iter().map(|(_, name)| name.clone()).collect();
        for layer in self.bottom.iter().chain(&self.top).chain(self.projection.iter().flatten()) {
            used.extend([format!("{layer}.weight"), format!("{layer}.bias")]);
        }
        used.extend(self.cross.iter().flatten().cloned());
        if let Some(name) = used.iter().find(|name| !checkpoint.tensors.contains_key(*name)) {
            return Err(Error::Missing { path: checkpoint.path.clone(), name: name.clone() });
        }
        // TorchRec's list of pairs, which is the same in every model.
        used.insert(format!("{prefix}inter_arch.triu_indices"));
        let is_batched = |name: &str| self.batched.iter().any(|module| name.starts_with(module));
        let roots: &[&str] = match self.family {
            Family::Facebook => &["emb_l.", "bot_l.", "top_l.", "cross_l."],
            Family::Torchrec => &["sparse_arch.", "dense_arch.", "inter_arch.", "over_arch."],
        };
        let rest = |name: &&String| !used.contains(*name) && !is_batched(name);
        for name in checkpoint.tensors.keys().filter(rest) {
            let own = name.strip_prefix(prefix);
            if own.is_some_and(|own| roots.iter().any(|root| own.starts_with(root))) {
                let (path, name) = (checkpoint.path.clone(), name.clone());
                return Err(Error::Unexpected { path, name });
            }
            self.ignored.push(name.clone());
        }
        Ok(())
    }
}

/// Names the technique that a tensor belongs to, where it is one that is not supported, and the way
/// out. `own` is the tensor's name without the model's prefix.
fn trick(own: &str, name: &str) -> Option<String> {
    let table = own.strip_prefix("emb_l.").and_then(|rest| rest.split_once('.'));
    Some(match table {
        Some((t, "weight_q" | "weight_r")) => format!(
            "`{name}`: quotient-remainder tables (--qr-flag) are not supported; before saving, \
             replace emb_l[{t}] by an EmbeddingBag with all its rows, which \
             emb_l[{t}](torch.arange(n), torch.arange(n)) gives"
        ),
        Some((t, "embs.weight" | "proj.weight")) => format!(
            "`{name}`: tables of mixed dimensions (--md-flag) are not supported; before saving, \
             replace emb_l[{t}] by an EmbeddingBag with the rows emb_l[{t}].embs.weight @ \
             emb_l[{t}].proj.weight.T"
        ),
        _ if own.starts_with("v_W_l.") => {
            let t = &own["v_W_l.".len()..];
            format!(
                "`{name}`: learned weights of pooling (--weighted-pooling learned) are not \
                 supported; before saving, multiply them into the rows: emb_l[{t}].weight.data \
                 *= v_W_l[{t}][:, None]"
            )
        }
        _ if own.starts_with("inter_arch.crossnet.kernels.") => format!(
            "`{name}`: cross layers of full rank are not supported; train with \
             LowRankCrossNet, as TorchRec's DLRM_DCN does"
        ),
        _ if own.ends_with(".weight_qscale") || own.ends_with(".weight_qbias") => format!(
            "`{name}`: scales apart from their rows are not supported; quantise without \
             quant_state_dict_split_scale_bias"
        ),
        _ => return None,
    })
}

/// Finds the family by the names of tables; the prefix of these is that of all other names.
fn family<'a>(names: &BTreeSet<&'a str>) -> Option<(Family, &'a str)> {
    let at_start = |name: &str, at: usize| at == 0 || name.as_bytes()[at - 1] == b'.';
    let mut found: Vec<(Family, &str)> = Vec::new();
    for name in names {
        for (family, marker) in [(Family::Torchrec, BAGS), (Family::Facebook, "emb_l.")] {
            let at = name.find(marker).filter(|at| at_start(name, *at));
            found.extend(at.map(|at| (family, &name[..at])));
        }
    }
    let has_dense = |(family, prefix): &(Family, &str)| match family {
        Family::Facebook => names.contains(&*format!("{prefix}bot_l.0.weight")),
        Family::Torchrec => {
            names.contains(&*format!("{prefix}dense_arch.model._mlp.0._linear.weight"))
        }
    };
    // An optimiser's state may repeat the names: the model is the one with its MLPs, else the
    // nearest to the root.
    found.into_iter().min_by_key(|candidate| (!has_dense(candidate), candidate.1.len()))
}

/// The number of layers with names of this form, by weights or by biases.
fn layers(names: &BTreeSet<&str>, start: &str, end: &str) -> usize {
    let count = |kind: &str| count(names, start, &format!("{end}.{kind}"));
    count("weight").max(count("bias"))
}

/// The number of names with this start and end, and no dot between.
fn count(names: &BTreeSet<&str>, start: &str, end: &str) -> usize {
    let between = |name: &&&str| {
        let middle = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
        middle.is_some_and(|middle| !middle.is_empty() && !middle.contains('.'))
    };
    names.iter().filter(between).count()
}

fn facebook(names: &BTreeSet<&str>) -> Names {
    let tables = 0..count(names, "emb_l.", ".weight");
    let layers = |mlp: &str| {
        let count = layers(names, &format!("{mlp}."), "");
        (0..count).map(|layer| format!("{mlp}.{}", layer * 2)).collect()
    };
    let cross = 0..count(names, "cross_l.", ".w");
    Names {
        family: Family::Facebook,
        tables: tables.map(|t| (format!("emb_l.{t}"), format!("emb_l.{t}.weight"))).collect(),
        bottom: layers("bot_l"),
        top: layers("top_l"),
        cross: cross
            .map(|i| ["w", "v", "bias"].map(|kind| format!("cross_l.{i}.{kind}")))
            .collect(),
        projection: [Vec::new(), Vec::new()],
        batched: Vec::new(),
        ignored: Vec::new(),
    }
}

fn torchrec(names: &BTreeSet<&str>, checkpoint: &Checkpoint, prefix: &str) -> Names {
    let table = |name: &str| Some(name.strip_prefix(BAGS)?.strip_suffix(".weight")?.to_string());
    let mut tables: Vec<String> = match &checkpoint.order {
        Some(order) => order.iter().filter_map(|name| table(name.strip_prefix(prefix)?)).collect(),
        None => names.iter().filter_map(|name| table(name)).collect(),
    };
    if checkpoint.order.is_none() {
        tables.sort_by_cached_key(|name| natural(name));
    }
    let layers = |mlp: &str| -> Vec<String> {
        let count = layers(names, &format!("{mlp}._mlp."), "._linear");
        (0..count).map(|layer| format!("{mlp}._mlp.{layer}._linear")).collect()
    };
    let cross = 0..count(names, "inter_arch.crossnet.W_kernels.", "");
    let mut top = layers("over_arch.model.0");
    top.push("over_arch.model.1".into());
    Names {
        family: Family::Torchrec,
        tables: tables
            .into_iter()
            .map(|name| (name.clone(), format!("{BAGS}{name}.weight")))
            .collect(),
        bottom: layers("dense_arch.model"),
        top,
        cross: cross
            .map(|i| {
                ["W_kernels", "V_kernels", "bias"]
                    .map(|kind| format!("inter_arch.crossnet.{kind}.{i}"))
            })
            .collect(),
        projection: [
            "inter_arch.interaction_branch1.model",
            "inter_arch.interaction_branch2.model",
        ]
        .map(layers),
        batched: (0..count(names, &format!("{COLLECTION}tbes."), ".weights_tys"))
            .map(|module| format!("{COLLECTION}tbes.{module}."))
            .collect(),
        ignored: Vec::new(),
    }
}

/// Sorts `t_9` before `t_10`: runs of digits by their value.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = vec![(String::new(), 0_u64)];
    let mut in_digits = false;
    for c in name.chars() {
        match (c.to_digit(10), parts.last_mut()) {
            (Some(digit), Some((_, value))) => {
                *value = value.saturating_mul(10).saturating_add(digit.into());
                in_digits = true;
            }
            (None, Some((text, _))) if !in_digits => text.push(c),
            _ => {
                parts.push((c.into(), 0));
                in_digits = false;
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_sort_by_value() {
        let mut names = ["t_10", "t_9", "a", "t_9_b", "t_9_a", "t"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["a", "t", "t_9", "t_9_a", "t_9_b", "t_10"]);
    }
}
