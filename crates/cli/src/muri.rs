//! `--compat muri`: the rules of Muri's simulator, whose published results they reproduce.

use anyhow::{Context as _, bail};
use hither_core::record::{Header, JobRow, JobState, RunRecord, Summary};
use hither_core::summary::Quantiles;
use hither_core::topology::Topology;
use hither_sched::compat::muri::{self, Outcome, Policy, Row};
use hither_sched::trace::muri_rows;
use rayon::prelude::*;

use crate::Common;
use crate::inputs::{bytes, file_name, say_notes, shown};
use crate::runs::{PlanArgs, cpu_s, header};

const POLICIES: [(&str, Policy); 3] =
    [("srtf", Policy::Srtf), ("srsf", Policy::Srsf), ("tiresias", Policy::Tiresias)];

/// Factor by which Muri stretches the measured time of an iteration.
const STRETCH: f64 = 1.015;

const NOTE: &str =
    "Muri's rules: no network model, so communication and tiers are not part of these figures";

pub fn run(args: &PlanArgs, common: &Common) -> anyhow::Result<(Header, Vec<RunRecord>)> {
    let policies = policies(&args.policies.policy)?;
    let topology = match args.cluster.read()? {
        Some(cluster) => {
            say_notes(common, &cluster.notes);
            cluster.topology
        }
        // The cluster of the published results.
        None => Topology::uniform(1, 8, 8),
    };
    let first = topology.machines.first().context("the cluster has no machines")?;
    if topology.machines.iter().any(|m| m.gpus != first.gpus || m.gpu_type != first.gpu_type) {
        bail!("--compat muri knows equal machines of one GPU type only; give such a --cluster");
    }
    let (nodes, gpus_per_node) = (topology.machines.len() as u32, first.gpus);
    let path = &args.trace.trace;
    let mut rows: Vec<Row> =
        muri_rows(&bytes(path)?, &shown(path))?.into_iter().map(Row::from).collect();
    let mut notes = vec![NOTE.to_string()];
    if args.scenario.drop_impossible {
        let before = rows.len();
        rows.retain(|row| u64::from(row.gpus) <= topology.gpus());
        if rows.len() < before {
            let dropped = before - rows.len();
            notes.push(format!("{dropped} of {before} jobs left out: they can never fit"));
        }
    }
    let seed = args.scenario.seed.unwrap_or(0);
    let settings = [("compat".to_owned(), "muri".to_owned())].into();
    let header = header(file_name(path), seed, 1.0, &topology, settings);
    let run = |&(name, policy): &(&str, Policy)| {
        let begin_s = cpu_s();
        let outcome = muri::run(&rows, nodes, gpus_per_node, policy)?;
        Ok(record(name, &header, &rows, &outcome, cpu_s() - begin_s, &notes))
    };
    let outcomes: Vec<Result<RunRecord, muri::Error>> =
        common.pool()?.install(|| policies.par_iter().map(run).collect());
    let runs: Result<Vec<RunRecord>, muri::Error> = outcomes.into_iter().collect();
    let runs = runs?;
    Ok((header, runs))
}

fn policies(names: &[String]) -> anyhow::Result<Vec<(&'static str, Policy)>> {
    if names.is_empty() || names.iter().any(|name| name == "all") {
        return Ok(POLICIES.to_vec());
    }
    let find = |name: &String| {
        let found = POLICIES.iter().find(|(known, _)| known == name);
        found.copied().with_context(|| {
            format!("unknown policy {name:?} for --compat muri; it has srtf, srsf and tiresias")
        })
    };
    names.iter().map(find).collect()
}

fn record(
    policy: &str,
    header: &Header,
    rows: &[Row],
    outcome: &Outcome,
    sim_cpu_s: f64,
    notes: &[String],
) -> RunRecord {
    let jobs: Vec<JobRow> = (0u32..)
        .zip(rows.iter().zip(&outcome.jobs))
        .map(|(job, (row, end))| JobRow {
            job,
            name: row.job_id.clone(),
            user: String::new(),
            model: row.model.clone(),
            gpus: row.gpus,
            submit_s: row.submit_ms / 1000.0,
            start_s: end.start_s,
            finish_s: end.finish_s,
            run_s: end.run_s,
            queue_s: (end.finish_s - row.submit_ms / 1000.0 - end.run_s).max(0.0),
            comm_s: None,
            ideal_s: row.iterations * row.iteration_ms * STRETCH / 1000.0,
            tier: 0,
            preemptions: end.preemptions,
            failures: 0,
            state: JobState::Finished,
            machines: Vec::new(),
        })
        .collect();
    let over =
        |f: fn(&JobRow) -> f64| Quantiles::from_values(&jobs.iter().map(f).collect::<Vec<_>>());
    let gpus: u64 = header.cluster.machines.iter().map(|m| u64::from(m.gpus)).sum();
    let summary = Summary {
        policy: policy.into(),
        clairvoyant: policy != "tiresias",
        seed: header.seed,
        jobs: jobs.len() as u64,
        finished: jobs.len() as u64,
        cancelled: 0,
        // Muri adds in order of completion, which the last digits show.
        jct_s: Quantiles { mean: outcome.mean_jct_s, ..over(JobRow::jct_s) },
        queue_s: over(|row| row.queue_s),
        makespan_s: outcome.makespan_s,
        gpu_utilisation: outcome.busy_gpu_s / (outcome.makespan_s * gpus as f64),
        // Muri's rules have neither a network nor machines to be fragmented.
        useful_utilisation: None,
        fragmentation: None,
        comm_s_total: None,
        comm_share: None,
        tier_share: Default::default(),
        preemptions: outcome.preemptions,
        failures: 0,
        events: outcome.events,
        sim_cpu_s,
        notes: notes.to_vec(),
    };
    RunRecord { summary, jobs, events: Vec::new() }
}
