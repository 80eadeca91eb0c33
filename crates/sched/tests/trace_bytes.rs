//! Whatever the bytes, a reader answers with a trace or with one clear error.

use hither_sched::profile::Library;
use hither_sched::read::{Error, Problem};
use hither_sched::topo;
use hither_sched::trace::{self, Format, Generate, ReadOptions};
use proptest::prelude::*;

const TRACES: [&[u8]; 14] = [
    include_bytes!("data/hither.csv"),
    include_bytes!("../../../examples/traces/philly.csv"),
    include_bytes!("../../../examples/traces/muri.csv"),
    include_bytes!("../../../examples/traces/gavel.trace"),
    include_bytes!("../../../examples/traces/pollux.csv"),
    include_bytes!("../../../examples/traces/tiresias.csv"),
    include_bytes!("../../../examples/traces/helios.csv"),
    include_bytes!("../../../examples/traces/acme.csv"),
    include_bytes!("../../../examples/traces/sample.swf"),
    include_bytes!("../../../examples/traces/sacct.txt"),
    include_bytes!("../../../examples/traces/philly-log.json"),
    include_bytes!("../../../examples/traces/pai/pai_task_table.csv"),
    include_bytes!("../../../examples/traces/lingjun/job.csv"),
    include_bytes!("../../../examples/traces/lingjun/worker.csv"),
];
const CLUSTERS: [&[u8]; 9] = [
    include_bytes!("data/cluster.toml"),
    include_bytes!("data/topology.conf"),
    include_bytes!("data/switches.csv"),
    include_bytes!("data/spec.csv"),
    include_bytes!("../../../examples/slurm/slurm.conf"),
    include_bytes!("../../../examples/slurm/gres.conf"),
    include_bytes!("../../../examples/slurm/topology.conf"),
    include_bytes!("../../../examples/slurm/topology.yaml"),
    include_bytes!("../../../examples/slurm/blocks.conf"),
];
const PROFILES: [&[u8]; 2] =
    [include_bytes!("data/profiles.toml"), include_bytes!("data/profile.json")];
const ABSURD: [&str; 16] = [
    "",
    " ",
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1000000000000000000",
    "-0",
    "1e-300",
    "x",
    "\u{7f}",
    "\"",
    "999999999999999999999999999",
    "[0-999999]",
];

fn clear(error: &Error) {
    let message = error.to_string();
    assert!(message.starts_with("file"), "{message}");
    let states = matches!(error.problem, Problem::States(_));
    assert!(states || message.contains("expected"), "{message}");
    assert!(message.len() < 2000 && !message.contains(char::is_control), "{message:?}");
}

/// Feeds everything to every reader.
fn read_all(bytes: &[u8]) {
    let library = Library::builtin();
    trace::detect(bytes);
    for format in Format::ALL.into_iter().map(Some).chain([None]) {
        let options = ReadOptions { format, seed: 1, library: &library };
        match trace::read(bytes, "file", &options) {
            Ok(trace) => {
                assert!(!trace.jobs.is_empty());
                assert!(trace.jobs.iter().all(|job| job.submit_s.is_finite() && job.gpus > 0));
                trace::describe(&trace, Some(64));
            }
            Err(error) => clear(&error),
        }
    }
    if let Err(error) = trace::muri_rows(bytes, "file") {
        clear(&error);
    }
    // A table beside the one that is not at hand; each in both places.
    let workers = include_bytes!("../../../examples/traces/lingjun/worker.csv");
    let jobs = include_bytes!("../../../examples/traces/lingjun/job.csv");
    let options = ReadOptions { format: Some(Format::Lingjun), seed: 1, library: &library };
    for tables in
        [[(bytes, "file"), (workers, "worker.csv")], [(jobs, "file"), (bytes, "file/worker.csv")]]
    {
        trace::read_tables(&tables, &options).err().iter().for_each(clear);
    }
    let nodes = include_bytes!("../../../examples/slurm/slurm.conf");
    for files in [&[(bytes, "file")][..], &[(bytes, "file"), (nodes, "file.conf")]] {
        match topo::read(files, None) {
            Ok(topo::ClusterDescription { topology, .. }) => {
                assert!(topology.gpus() > 0 && topology.gpus() <= 10_000_000)
            }
            Err(error) => clear(&error),
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        for result in [Library::parse_toml(text, "file"), Library::parse_json(text, "file")] {
            result.err().iter().for_each(clear);
        }
        Generate::parse_toml(text, "file").err().iter().for_each(clear);
        let _ = topo::expand(text);
    }
}

fn valid() -> impl Strategy<Value = Vec<u8>> {
    let all: Vec<&[u8]> = TRACES.into_iter().chain(CLUSTERS).chain(PROFILES).collect();
    proptest::sample::select(all).prop_map(<[u8]>::to_vec)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    #[test]
    fn any_text(text in "[\\x00-\\x7fä\u{feff}]{0,200}") {
        read_all(text.as_bytes());
    }

    #[test]
    fn cut_files(bytes in valid(), at in any::<prop::sample::Index>()) {
        read_all(&bytes[..at.index(bytes.len())]);
    }

    #[test]
    fn flipped_bytes(
        bytes in valid(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = bytes;
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read_all(&bytes);
    }

    #[test]
    fn absurd_fields(
        bytes in valid(),
        at in any::<prop::sample::Index>(),
        absurd in proptest::sample::select(&ABSURD[..]),
    ) {
        let text = String::from_utf8(bytes).unwrap();
        let separator = |c: char| ",\t\n =:".contains(c);
        let starts: Vec<usize> = text.match_indices(separator).map(|(i, _)| i + 1).collect();
        let start = starts[at.index(starts.len())];
        let end = text[start..].find(separator).map_or(text.len(), |length| start + length);
        read_all(format!("{}{absurd}{}", &text[..start], &text[end..]).as_bytes());
    }
}

/// A field that is wrong is named by its line and column, in every format with columns.
#[test]
fn an_absurd_field_is_placed() {
    let library = Library::builtin();
    let options = ReadOptions { format: None, seed: 1, library: &library };
    for (trace, separator, column) in [
        (0, ',', 2),
        (1, ',', 2),
        (2, ',', 1),
        (3, '\t', 6),
        (4, ',', 3),
        (5, ',', 1),
        (6, ',', 3),
        (7, ',', 3),
    ] {
        let text = std::str::from_utf8(TRACES[trace]).unwrap();
        let mut lines: Vec<String> = text.lines().map(Into::into).collect();
        let mut cells: Vec<&str> = text.lines().nth(1).unwrap().split(separator).collect();
        cells[column] = "1e18";
        lines[1] = cells.join(&separator.to_string());
        let error = trace::read(lines.join("\n").as_bytes(), "file", &options).unwrap_err();
        assert_eq!((error.line, error.found.as_deref()), (Some(2), Some("1e18")), "{error}");
        assert!(error.place.is_some(), "{error}");
    }
}
