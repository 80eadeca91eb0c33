//! Made-up runs whose curves have the shape of real ones.

use std::collections::BTreeMap;

use hither_core::record::train::{
    Bytes, CriticalPath, Header, Round, RunRecord, Setup, Summary, Times, Work, Works,
};

pub const MODES: [&str; 7] =
    ["single", "psgd-pa", "llcg", "llcg-stale", "ggs", "psgd-sa", "server-only"];

/// Noise from −1 to 1 that depends on its arguments alone.
fn noise(seed: u64, round: u32) -> f64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(round));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

pub fn runs(modes: &[&str], seeds: u64, rounds: u32) -> Vec<RunRecord> {
    let of = |mode: &&str| (1..=seeds).map(|seed| run(mode, seed, rounds)).collect::<Vec<_>>();
    modes.iter().flat_map(of).collect()
}

pub fn run(mode: &str, seed: u64, rounds: u32) -> RunRecord {
    let rows: Vec<Round> = (1..=rounds).map(|round| row(mode, seed, round, rounds)).collect();
    let scored = rows.iter().filter(|row| row.valid.is_some());
    let best = scored.max_by(|a, b| a.valid.unwrap().total_cmp(&b.valid.unwrap())).unwrap();
    let (mut bytes, mut time) = (Bytes::default(), Times::default());
    let (mut work, mut path) = (Works::default(), CriticalPath::default());
    for row in &rows {
        bytes.add(&row.bytes);
        work.add(&row.work);
        path.add(&row.path);
        time.local_s += row.time.local_s;
        time.server_s += row.time.server_s;
    }
    let summary = Summary {
        mode: mode.into(),
        seed,
        rounds,
        best_round: best.round,
        valid: best.valid,
        test: best.test.unwrap(),
        server_steps: rows.iter().map(|row| u64::from(row.server_steps)).sum(),
        bytes,
        work,
        path,
        time,
        setup: Setup::default(),
        classes: vec![],
    };
    let header = Header {
        hither: "0.1.0".into(),
        dataset: "made-up".into(),
        nodes: 63_436,
        edges: 321_636,
        features: 1_262,
        classes: 41,
        metric: "accuracy".into(),
        mode: mode.into(),
        model: "gcn 2×64".into(),
        parameters: 83_561,
        parts: 8,
        partition: "metis".into(),
        cut_share: 0.204,
        rounds,
        seed,
    };
    RunRecord { header, rounds: rows, summary }
}

fn row(mode: &str, seed: u64, round: u32, rounds: u32) -> Round {
    let seed = 100 * seed + mode.len() as u64;
    let (top, pace) = match mode {
        "single" => (0.781, 6.0),
        "psgd-pa" => (0.746, 5.0),
        "llcg" => (0.779, 6.0),
        "llcg-stale" => (0.774, 5.0),
        "ggs" => (0.778, 6.0),
        "psgd-sa" => (0.755, 5.0),
        _ => (0.732, 3.0),
    };
    let learnt = 1.0 - (-pace * f64::from(round) / f64::from(rounds.min(200))).exp();
    let valid = 0.3 + (top - 0.3) * learnt + 0.006 * noise(seed, round);
    let scored = round.is_multiple_of(2) || round == rounds;
    let corrects = matches!(mode, "llcg" | "llcg-stale" | "server-only");
    let sends = !matches!(mode, "single" | "server-only");
    let model = if sends { 8 * 4 * 83_561 } else { 0 };
    let nodes = if mode == "ggs" { 60_000 + (2_000.0 * noise(seed, round)) as u64 } else { 0 };
    Round {
        round,
        local_steps: if mode == "server-only" { 0 } else { 10 },
        kept: if corrects { 1.0 - 0.5 * learnt } else { 1.0 },
        server_steps: if corrects { 1 + (6.0 * learnt) as u32 } else { 0 },
        server_batch: corrects.then_some(256),
        loss: 0.7 + 3.0 * (1.0 - learnt) + 0.03 * noise(seed + 5, round),
        valid: scored.then_some(valid),
        test: scored.then_some(valid - 0.004),
        further: BTreeMap::new(),
        bytes: Bytes {
            model_down_bytes: model,
            model_up_bytes: model,
            features_down_bytes: nodes * 1_262 * 4,
            requests_up_bytes: nodes * 4,
        },
        gain: (corrects && round % 4 == 1).then(|| 0.05 * noise(seed + 7, round)),
        work: Works {
            workers: Work { sums: 2_000_000_000, products: 6_000_000_000 },
            slowest: Work { sums: 260_000_000, products: 800_000_000 },
            server: Work { sums: if corrects { 200_000_000 } else { 0 }, products: 0 },
            ..Works::default()
        },
        path: CriticalPath {
            workers_s: if mode == "single" { 0.3 } else { 0.04 },
            transfer_s: if sends { 0.004 } else { 0.0 },
            server_s: if corrects { 0.02 } else { 0.0 },
        },
        time: Times {
            local_s: 0.3 + 0.05 * noise(seed + 6, round),
            exposed_s: 0.0,
            server_s: if corrects { 0.08 } else { 0.0 },
            evaluate_s: 0.1,
        },
    }
}
