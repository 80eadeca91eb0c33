//! Which interaction a model has, told by the number of inputs of its top MLP.

use super::names::{Family, Names};
use super::{Interaction, Options, Spec};

/// Upper bound on the features that a hint about shared tables considers.
const FEATURES_MAX: usize = 1000;

/// The interaction that fits the top MLP, or why none is chosen. Cross layers or a projection settle it.
pub fn choose(spec: &Spec, names: &Names, options: &Options) -> Result<Interaction, String> {
    let kinds = match (spec.cross, names.family) {
        (Some(_), _) => &[Interaction::Dcn][..],
        _ if spec.projection.is_some() => &[Interaction::Projection],
        (None, Family::Facebook) => &[Interaction::Dot, Interaction::DotItself, Interaction::Cat],
        (None, Family::Torchrec) => &[Interaction::Dot, Interaction::Cat],
    };
    let inputs = spec.top[0];
    let fitting: Vec<Interaction> =
        kinds.iter().copied().filter(|kind| fits(spec, *kind, inputs)).collect();
    let top = format!("`{}.weight` takes {inputs} inputs", names.top[0]);
    match (options.interaction, &fitting[..]) {
        (Some(wanted), _) if fitting.contains(&wanted) => Ok(wanted),
        (Some(wanted), []) => {
            Err(format!("--interaction {}: {top}; {}", wanted.name(), expected(spec, names, kinds)))
        }
        (Some(wanted), _) => Err(format!(
            "--interaction {}: {top}, which fits {}; leave out --interaction",
            wanted.name(),
            listed(&fitting, "and")
        )),
        (None, [only]) => Ok(*only),
        (None, []) => Err(format!("{top}; {}", expected(spec, names, kinds))),
        // TorchRec itself has dot products only.
        (None, [Interaction::Dot, ..]) if names.family == Family::Torchrec => Ok(Interaction::Dot),
        (None, several) => Err(format!(
            "{top}, which fits {}; say which with --interaction {}",
            listed(several, "and"),
            listed(several, "or")
        )),
    }
}

fn fits(spec: &Spec, interaction: Interaction, inputs: usize) -> bool {
    let products = matches!(interaction, Interaction::Dot | Interaction::DotItself);
    width(spec, interaction) == inputs && (!products || dims_agree(spec))
}

fn width(spec: &Spec, interaction: Interaction) -> usize {
    Spec { interaction, ..spec.clone() }.interaction_width()
}

fn dims_agree(spec: &Spec) -> bool {
    spec.tables.iter().all(|table| table.dim == spec.bottom_width())
}

fn listed(kinds: &[Interaction], word: &str) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    match &names[..] {
        [first @ .., last] if !first.is_empty() => format!("{} {word} {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// What the top MLP would take for the tables of the file, and what else may explain its inputs.
fn expected(spec: &Spec, names: &Names, kinds: &[Interaction]) -> String {
    let features = spec.tables.len();
    let need = |kind: &Interaction| format!("{} needs {}", kind.name(), width(spec, *kind));
    let needs: Vec<String> = kinds.iter().map(need).collect();
    let s = if features == 1 { "" } else { "s" };
    let shared = spec.tables.iter().find(|table| table.shares.is_some());
    let hint = match shared {
        Some(table) => format!(
            "; --tables makes `{}` and `{}` share rows: is a table named once too often?",
            table.shares.as_deref().unwrap_or_default(),
            table.name
        ),
        None => sharing(spec, names, spec.top[0]).unwrap_or_default(),
    };
    format!("with {features} feature{s}, {}{hint}", needs.join(", "))
}

/// A hint that tables may serve several features, where that explains the width.
pub fn sharing(spec: &Spec, names: &Names, width: usize) -> Option<String> {
    // facebookresearch/dlrm has one table per feature.
    if names.family == Family::Facebook || !dims_agree(spec) {
        return None;
    }
    let dim = spec.bottom_width();
    let side_by_side = !names.cross.is_empty() || !names.projection[0].is_empty();
    let products = |features: usize| match side_by_side {
        true => dim * (features + 1),
        false => dim + features * (features + 1) / 2,
    };
    let features = (spec.tables.len() + 1..FEATURES_MAX).find(|n| products(*n) == width)?;
    Some(format!(
        "; {width} would fit {features} features: if features share a table, name the tables in \
         the order of the features, the shared one several times: --tables {}",
        names.example_tables()
    ))
}
