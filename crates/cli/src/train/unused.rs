//! Options that a run does not use, so that nobody believes that they changed anything.

use hither_gnn::correct::ServerSteps;
use hither_gnn::layer::Norm;
use hither_gnn::mode::{Mode, Sees};
use hither_gnn::model::Kind;
use hither_gnn::transport::mpi::Launch;
use hither_gnn::transport::{Gather, Lost, Straggler};
use hither_gnn::update::Updates;

use super::args::TrainArgs;
use crate::Common;

/// Notes options that were set to something else than their default, and that neither the model nor
/// one of the modes uses.
pub fn note(args: &TrainArgs, modes: &[Mode], common: &Common) {
    let unused = unused(args, modes);
    if !unused.is_empty() {
        let verb = if unused.len() == 1 { "is" } else { "are" };
        common.say(&format!("note: {} {verb} not used here", unused.join(", ")));
    }
}

fn unused(args: &TrainArgs, modes: &[Mode]) -> Vec<&'static str> {
    let TrainArgs { model, parts, local, server, exchange, run, .. } = args;
    let layers = args.stack().unwrap_or_default();
    let without = |kind: Kind| !layers.contains(&kind);
    let sees = |what: Sees| modes.iter().any(|mode| mode.does().workers == Some(what));
    let is_cut = modes.iter().any(|mode| mode.is_distributed());
    let corrects = modes.iter().any(|mode| mode.corrects());
    let corrects_workers = modes.iter().any(|mode| mode.corrects_workers());
    let learns = modes.iter().any(|mode| mode.does().workers.is_some());
    let is_alone = Launch::from_env().is_none();
    let is_auto = server.server_steps == ServerSteps::Auto;
    let options = [
        ("--heads", model.heads != 1 && without(Kind::Gat) && without(Kind::Gatv2)),
        ("--alpha", model.alpha != 0.2 && without(Kind::Propagate)),
        ("--norm", model.norm != Norm::Symmetric && without(Kind::Gcn)),
        ("--copies", parts.copies != 0.1 && !sees(Sees::PartAndCopies)),
        ("--partition", parts.partition.is_some() && !is_cut),
        ("--local-steps", local.local_steps != 10 && !learns),
        ("--rho", local.rho != 1.0 && !learns),
        ("--server-steps", !is_auto && !corrects),
        ("--server-share", server.server_share != 1.0 && !(is_auto && corrects_workers)),
        ("--server-lr", server.server_lr.is_some() && !corrects),
        ("--gather", exchange.gather != Gather::Ordered && is_alone),
        ("--straggler", exchange.straggler != Straggler::Wait && is_alone),
        ("--lost", exchange.lost != Lost::Wait && is_alone),
        ("--updates", exchange.updates != Updates::Fp32 && !is_cut),
        ("--probe", run.probe.is_some() && !sees(Sees::Part)),
    ];
    options.into_iter().filter(|(_, is_unused)| *is_unused).map(|(flag, _)| flag).collect()
}
