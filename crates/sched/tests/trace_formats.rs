//! Every trace format on a small file of its own, and what is said about wrong ones.

use hither_sched::job::{Job, Length};
use hither_sched::profile::Library;
use hither_sched::trace::{self, Error, Format, ReadOptions, Trace};

fn read(bytes: &[u8], file: &str) -> Result<Trace, Error> {
    let library = Library::builtin();
    trace::read(bytes, file, &ReadOptions { format: None, seed: 7, library: &library })
}

fn small(format: Format) -> (&'static str, &'static [u8]) {
    match format {
        Format::Hither => ("hither.csv", include_bytes!("data/hither.csv")),
        Format::Philly => ("philly.csv", include_bytes!("data/philly.csv")),
        Format::Muri => ("muri.csv", include_bytes!("data/sample-muri.csv")),
        Format::Gavel => ("gavel.trace", include_bytes!("data/gavel.trace")),
        Format::Pollux => ("pollux.csv", include_bytes!("data/pollux.csv")),
        Format::Tiresias => ("tiresias.csv", include_bytes!("data/tiresias.csv")),
        Format::Swf => ("small.swf", include_bytes!("data/small.swf")),
    }
}

fn jobs(format: Format) -> Vec<Job> {
    let (file, bytes) = small(format);
    read(bytes, file).unwrap_or_else(|error| panic!("{error}")).jobs
}

#[test]
fn formats_are_told_by_their_content() {
    for format in Format::ALL {
        let (file, bytes) = small(format);
        assert_eq!(trace::detect(bytes), Some(format), "{file}");
        assert_eq!(Format::from_name(format.name()), Some(format));
        let trace = read(bytes, file).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(trace.format, format);
        assert_eq!(trace.jobs[0].submit_s, 0.0, "{file}");
        assert!(trace.jobs.is_sorted_by(|a, b| a.submit_s <= b.submit_s), "{file}");

        // Windows line ends and a byte order mark change nothing.
        let mut windows = b"\xef\xbb\xbf".to_vec();
        for byte in bytes {
            windows.extend(if *byte == b'\n' { &b"\r\n"[..] } else { std::slice::from_ref(byte) });
        }
        assert_eq!(read(&windows, file).unwrap(), trace, "{file}");
    }
}

#[test]
fn hither_rows() {
    let jobs = jobs(Format::Hither);
    assert_eq!(jobs[1].user, "Bob, the second");
    assert_eq!(jobs[1].gpu_type.as_deref(), Some("a100"));
    assert_eq!(jobs[1].length, Length::Iterations(5000.0));
    assert_eq!(jobs[0].profile.name, "resnet50");
    let text = trace::write(&jobs);
    assert_eq!(read(text.as_bytes(), "again.csv").unwrap().jobs, jobs);
}

#[test]
fn philly_rows_are_sorted_and_get_models() {
    let jobs = jobs(Format::Philly);
    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["3", "2", "4", "1"], "equal times keep the order of the file");
    assert_eq!((jobs[1].submit_s, jobs[3].submit_s), (22_384.0, 25_316.0));
    assert_eq!(jobs[0].length, Length::Seconds(86_066.0));
}

#[test]
fn muri_rows_share_profiles_and_lose_the_network_stage() {
    let jobs = jobs(Format::Muri);
    assert!(std::sync::Arc::ptr_eq(&jobs[1].profile, &jobs[2].profile));
    assert!((jobs[1].profile.compute_s - 0.148).abs() < 1e-12);
    assert_eq!((jobs[1].profile.restart_s, jobs[3].profile.restart_s), (9.0, 10.0));
    assert_eq!(jobs[3].submit_s, 301.694);
    let (file, bytes) = small(Format::Muri);
    let rows = trace::muri_rows(bytes, file).unwrap();
    assert_eq!((rows[3].line, rows[3].stage_ms), (5, [0.5, 166.0, 133.0]));
}

#[test]
fn gavel_jobs_take_the_measured_time() {
    let jobs = jobs(Format::Gavel);
    // 3948 steps of two workers together at 94.2489 steps a second.
    let Length::Iterations(iterations) = jobs[0].length else { panic!() };
    let seconds = iterations * jobs[0].profile.compute_s;
    assert!((seconds - 3948.0 / 94.2489).abs() < 0.01 * seconds, "{seconds}");
    assert_eq!(jobs[2].profile.table.len(), 2, "together and spread");
    assert_eq!(jobs[1].profile.name, "a3c@gavel");
}

#[test]
fn pollux_jobs_follow_their_batch_size() {
    let jobs = jobs(Format::Pollux);
    assert_eq!(jobs[0].length, Length::Iterations(5e6 / 2048.0));
    let library = Library::builtin();
    let base = library.get("cifar10@aws").unwrap();
    let ratio = jobs[0].profile.compute_s / base.compute_s;
    assert!((ratio - 256.0 / 182.0).abs() < 1e-9, "{ratio}");
    assert!(!jobs[0].profile.table.is_empty());
}

#[test]
fn tiresias_jobs_are_in_seconds() {
    let jobs = jobs(Format::Tiresias);
    assert_eq!(jobs[1].length, Length::Seconds(147.0));
    assert!(jobs[1].profile.skew > 0.7, "vgg11");
}

#[test]
fn swf_rows_left_out_are_counted() {
    let (file, bytes) = small(Format::Swf);
    let trace = read(bytes, file).unwrap();
    let kept: Vec<(&str, u32, Length)> =
        trace.jobs.iter().map(|job| (job.name.as_str(), job.gpus, job.length)).collect();
    assert_eq!(
        kept,
        [
            ("1", 8, Length::Seconds(100.0)),
            ("3", 2, Length::Seconds(1.0)),
            ("5", 32, Length::Seconds(500.0)),
        ]
    );
    assert_eq!(trace.notes.len(), 5, "{:?}", trace.notes);
    assert!(trace.notes[1].starts_with("2 rows left out: parts of jobs"), "{:?}", trace.notes);
    assert_eq!((trace.jobs[0].user.as_str(), trace.jobs[1].user.as_str()), ("user3", ""));
}

/// What is wrong, and the whole message.
#[test]
fn errors_say_where_what_and_what_instead() {
    let philly = "timestamp,duration,num_gpus,gpu_time,cluster\n";
    let hither = "job,gpus,submit_s,duration_s,iterations,model\n";
    let cases: &[(String, &str)] = &[
        (
            format!("{philly}2017-10-09 07:01:55,66.0,-3,66.0,c\n"),
            "t:2: column num_gpus: found \"-3\", expected a whole number from 1 to 1000000",
        ),
        (
            format!("{philly}\n\n2017-10-09 07:01:55,nan,1,66.0,c\n"),
            "t:4: column duration: found \"nan\", expected a number from 0.000000001 to 10000000000",
        ),
        (
            format!("{philly}yesterday,5,1,66.0,c\n"),
            "t:2: column timestamp: found \"yesterday\", expected a time such as 2017-10-09 07:01:55",
        ),
        (
            format!("{philly}2017-10-09 07:01:55,66.0,1\n"),
            "t:2: found \"3 columns\", expected 5 columns",
        ),
        (philly.into(), "t: found \"\", expected at least one job"),
        (String::new(), "t: found \"\", expected a trace of jobs"),
        (
            format!("{hither}a,1000000000000000000,0,5,,\n"),
            "t:2: column gpus: found \"1000000000000000000\", expected a whole number from 1 to 1000000",
        ),
        (
            format!("{hither}a,1,0,5,,bert\na,1,0,5,,bert\n"),
            "t:3: found \"a\", expected job ids that differ; an earlier row has the same id",
        ),
        (
            format!("{hither}a,1,0,,7,\n"),
            "t:2: column model: found \"\", expected a model, as the length is in iterations",
        ),
        (
            format!("{hither}a,1,0,,,bert\n"),
            "t:2: column duration_s: found \"\", expected either duration_s or iterations",
        ),
        (
            format!("{hither}\"a,1,0,5,,bert\n"),
            "t:2: found \"\\\"a,1,0,5,,bert\", expected a closing quote at the end of a quoted field",
        ),
        (
            "job,gpus,submit_s,duration_s,colour\na,1,0,5,red\n".into(),
            "t:1: found \"colour\", expected one of the columns \
             job,gpus,submit_s,duration_s,iterations,model,user,gpu_type",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(&read(text.as_bytes(), "t").unwrap_err().to_string(), message);
    }
    let unknown = format!("{hither}a,1,0,5,,my-net\n");
    let message = read(unknown.as_bytes(), "t").unwrap_err().to_string();
    assert!(message.contains("resnet50") && message.contains("--profiles FILE"), "{message}");
    let binary = read(b"job,gpus,submit_s\n\xff\xfe", "t").unwrap_err().to_string();
    assert!(binary.starts_with("t:2: expected text in UTF-8"), "{binary}");
    let other = read(b"a,b\n1,2\n", "t").unwrap_err().to_string();
    assert!(other.contains("hither, philly, muri"), "{other}");
}

#[test]
fn a_trace_is_described() {
    let (file, bytes) = small(Format::Tiresias);
    let info = trace::describe(&read(bytes, file).unwrap(), Some(10));
    assert_eq!((info.jobs, info.span_s), (3, 53.0));
    let gpu_s = 164.0 + 8.0 * 147.0 + 2.0 * 127.0;
    assert!((info.gpu_hours - gpu_s / 3600.0).abs() < 1e-9);
    assert!((info.offered_load.unwrap() - gpu_s / 530.0).abs() < 1e-9);
    assert_eq!(info.models[0].model, "vgg11");
    assert_eq!(info.demand[&8], 1);
}
