//! Options that say how to read a checkpoint, for `hither model import` and `info`.

use hither_dlrm::import::Options;
use hither_dlrm::model::Interaction;
use hither_kernels::bag::Pooling;
use hither_kernels::bag::quant::Foreign;

use super::{pooling, rows};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Facts that a checkpoint may not contain")]
pub struct Reading {
    /// Interaction, if the shapes fit several: dot, dot-itself or cat
    #[arg(long, value_name = "KIND")]
    interaction: Option<Interaction>,
    /// Pooling: sum, mean or max, or FEATURE=HOW for single features [default: sum]
    #[arg(long, value_name = "HOW,…", value_delimiter = ',', value_parser = feature_pooling)]
    pooling: Vec<(Option<String>, Pooling)>,
    /// Tables in the order of the features, each as TABLE or FEATURE=TABLE; name a shared table
    /// once per feature; tables not named follow [default: as saved, or by name]
    #[arg(long, value_name = "TABLE,…", value_delimiter = ',')]
    tables: Option<Vec<String>>,
    /// Layout of quantised rows: fbgemm-int8, fbgemm-int4, torch-int8 or torch-int4
    #[arg(long, value_name = "LAYOUT", value_parser = rows)]
    rows: Option<Foreign>,
    /// The outputs are logits [default: for TorchRec]
    #[arg(long, conflicts_with = "sigmoid")]
    logits: bool,
    /// The top MLP ends in a sigmoid [default: for facebookresearch/dlrm]
    #[arg(long)]
    sigmoid: bool,
}

impl Reading {
    pub fn options(&self, name: Option<&String>) -> Options {
        Options {
            name: name.cloned(),
            interaction: self.interaction,
            pooling: self.pooling.iter().find(|(name, _)| name.is_none()).map(|(_, how)| *how),
            poolings: (self.pooling.iter())
                .filter_map(|(name, how)| Some((name.clone()?, *how)))
                .collect(),
            tables: self.tables.clone(),
            rows: self.rows,
            logits: (self.logits || self.sigmoid).then_some(self.logits),
        }
    }

    /// The first option that was given, for commands that have no use for it.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            (self.interaction.is_some(), "--interaction"),
            (!self.pooling.is_empty(), "--pooling"),
            (self.tables.is_some(), "--tables"),
            (self.rows.is_some(), "--rows"),
            (self.logits, "--logits"),
            (self.sigmoid, "--sigmoid"),
        ];
        given.into_iter().find_map(|(given, name)| given.then_some(name))
    }
}

/// `mean`, or `item=mean`.
fn feature_pooling(text: &str) -> Result<(Option<String>, Pooling), String> {
    match text.rsplit_once('=') {
        Some((feature, how)) => Ok((Some(feature.into()), pooling(how)?)),
        None => Ok((None, pooling(text)?)),
    }
}
