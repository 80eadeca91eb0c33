//! Every trace format on a small file of its own, and what is said about wrong ones.

use hither_sched::job::{Job, Length};
use hither_sched::profile::Library;
use hither_sched::read::Error;
use hither_sched::trace::{self, Format, ReadOptions, Trace};

fn read(bytes: &[u8], file: &str) -> Result<Trace, Error> {
    let library = Library::builtin();
    trace::read(bytes, file, &ReadOptions { format: None, seed: 7, library: &library })
}

/// The sample of a format: its tables, the main one first.
fn small(format: Format) -> Vec<(&'static [u8], &'static str)> {
    macro_rules! sample {
        ($($file:literal),+) => {
            vec![$((&include_bytes!(concat!("../../../examples/traces/", $file))[..], $file)),+]
        };
    }
    match format {
        Format::Hither => vec![(include_bytes!("data/hither.csv"), "hither.csv")],
        Format::Sacct => sample!("sacct.txt"),
        Format::Philly => sample!("philly.csv"),
        Format::PhillyLog => sample!("philly-log.json"),
        Format::Helios => sample!("helios.csv"),
        Format::Acme => sample!("acme.csv"),
        Format::Pai => sample!(
            "pai/pai_task_table.csv",
            "pai/pai_task_table.header",
            "pai/pai_job_table.csv",
            "pai/pai_job_table.header"
        ),
        Format::Lingjun => sample!("lingjun/job.csv", "lingjun/worker.csv"),
        Format::Muri => sample!("muri.csv"),
        Format::Gavel => sample!("gavel.trace"),
        Format::Pollux => sample!("pollux.csv"),
        Format::Tiresias => sample!("tiresias.csv"),
        Format::Swf => sample!("sample.swf"),
    }
}

fn read_small(format: Format) -> Trace {
    let library = Library::builtin();
    let options = ReadOptions { format: None, seed: 7, library: &library };
    trace::read_tables(&small(format), &options).unwrap_or_else(|error| panic!("{error}"))
}

fn jobs(format: Format) -> Vec<Job> {
    read_small(format).jobs
}

/// Name, user, GPUs, submission and running time of every job.
fn logged(format: Format) -> Vec<(String, String, u32, f64, f64)> {
    let row = |job: Job| match job.length {
        Length::Seconds(run_s) => (job.name, job.user, job.gpus, job.submit_s, run_s),
        Length::Iterations(_) | Length::Unknown => panic!("logs record seconds"),
    };
    jobs(format).into_iter().map(row).collect()
}

fn row(
    name: &str,
    user: &str,
    gpus: u32,
    submit_s: f64,
    run_s: f64,
) -> (String, String, u32, f64, f64) {
    (name.into(), user.into(), gpus, submit_s, run_s)
}

#[test]
fn formats_are_told_by_their_content() {
    for format in Format::ALL {
        let tables = small(format);
        let (bytes, file) = tables[0];
        assert_eq!(trace::detect(bytes), Some(format), "{file}");
        assert_eq!(Format::from_name(format.name()), Some(format));
        let trace = read_small(format);
        assert_eq!(trace.format, format);
        assert_eq!(trace.jobs[0].submit_s, 0.0, "{file}");
        assert!(trace.jobs.is_sorted_by(|a, b| a.submit_s <= b.submit_s), "{file}");

        // Windows line ends and a byte order mark change nothing.
        let mut windows = b"\xef\xbb\xbf".to_vec();
        for byte in bytes {
            windows.extend(if *byte == b'\n' { &b"\r\n"[..] } else { std::slice::from_ref(byte) });
        }
        let library = Library::builtin();
        let options = ReadOptions { format: None, seed: 7, library: &library };
        let mut tables = tables.clone();
        tables[0].0 = &windows;
        assert_eq!(trace::read_tables(&tables, &options).unwrap(), trace, "{file}");
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
    let (bytes, file) = small(Format::Muri)[0];
    let rows = trace::muri_rows(bytes, file).unwrap();
    assert_eq!((rows[3].line, rows[3].stage_ms), (5, [0.5, 166.0, 133.0]));
}

#[test]
fn gavel_jobs_take_the_measured_time() {
    let jobs = jobs(Format::Gavel);
    // 3948 steps of two workers together at 94.2489 steps per second.
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
    let trace = read_small(Format::Swf);
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
    assert_eq!(
        trace.notes[0],
        "left out 4 of 7 jobs: 1 cancelled before they ran (status 5), \
         1 with unknown processors or run time (-1 or 0), \
         2 that are parts of other jobs (status 2 to 4)"
    );
    assert_eq!(trace.notes[1], "changed jobs: 1 with a run time of 0 (taken as 1 s)");
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
        (philly.into(), "t has a header but no jobs"),
        (String::new(), "t is empty; a trace of jobs is needed"),
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
    assert!(other.contains("hither, sacct, philly"), "{other}");
}

/// A column that is missing is named, with those that are there; a slip is not passed over.
#[test]
fn missing_columns_are_named() {
    for (header, message) in [
        (
            "job_id,user,vc,gpus,state,submit_time,duration",
            "t:1: the column gpu_num is missing; the columns are \
             job_id, user, vc, gpus, state, submit_time, duration",
        ),
        (
            "job_id,usr,vc,gpu_num,state,submit_time,duration",
            "t:1: the column user is missing; the columns are \
             job_id, usr, vc, gpu_num, state, submit_time, duration; is usr a misspelling of it?",
        ),
        (
            "timestamp,duration,num_gpus,gpu_time,clustr",
            "t:1: the column cluster is missing; the columns are \
             timestamp, duration, num_gpus, gpu_time, clustr; is clustr a misspelling of it?",
        ),
        (
            "job_id,num_gpu,submit_time,model,duration",
            "t:1: the column model_name is missing; the columns are \
             job_id, num_gpu, submit_time, model, duration",
        ),
        (
            "JobID|User|State|Submit|Elapsed",
            "t:1: the column AllocTRES (or ReqTRES) is missing; the columns are \
             JobID, User, State, Submit, Elapsed; print one with sacct -a -P -o \
             JobID,User,State,Submit,Start,End,ElapsedRaw,NNodes,ReqTRES,AllocTRES",
        ),
    ] {
        let text = format!("{header}\n1,2,3,4,5,6,7\n");
        assert_eq!(read(text.as_bytes(), "t").unwrap_err().to_string(), message);
    }
    // One table of two, or the wrong one.
    for (format, at, word) in [
        (Format::Lingjun, 0, "worker.csv; give the folder"),
        (Format::Lingjun, 1, "give the folder"),
        (Format::Pai, 2, "pai_task_table.csv; give the folder"),
    ] {
        let (bytes, file) = small(format)[at];
        let library = Library::builtin();
        let options = ReadOptions { format: Some(format), seed: 7, library: &library };
        let error = trace::read(bytes, file, &options).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn sacct_jobs_arrays_and_requeues() {
    assert_eq!(
        logged(Format::Sacct),
        [
            row("1002", "ann", 4, 0.0, 16_230.0),
            row("1003", "bob", 32, 1500.0, 172_800.0),
            row("1004", "cho", 1, 3300.0, 630.0),
            row("1006_1", "dee", 1, 6900.0, 2700.0),
            row("1006_2", "dee", 1, 6900.0, 1.0),
            row("1007", "ann", 16, 10_500.0, 18_000.0),
        ]
    );
    let trace = read_small(Format::Sacct);
    assert_eq!(
        trace.notes[..2],
        [
            "left out 4 of 10 jobs: 1 without GPUs, 1 that never started, \
             2 still running or pending",
            "changed jobs: 1 requeued (added to the first row of the job), \
             1 of less than a second (taken as 1 s)",
        ]
    );
    // A type is a wish only where the job asked for it.
    let types: Vec<Option<&str>> = trace.jobs.iter().map(|job| job.gpu_type.as_deref()).collect();
    assert_eq!(types, [None, Some("a100"), None, None, None, None]);
}

#[test]
fn sacct_in_the_forms_of_old_and_odd_sites() {
    // Requests of old versions count per node; times as seconds; another separator; -p's last bar.
    let old = "JobIDRaw;AllocGRES;ReqGRES;NNodes;Submit;ElapsedRaw;State\n\
               1;;gpu:a100:4;2;1700000000;60;COMPLETED\n\
               2;gpu:6;gpu:2;3;1700000005;90;FAILED\n\
               2.0;gpu:6;;3;1700000005;90;FAILED\n";
    let jobs = read(old.as_bytes(), "t").unwrap().jobs;
    let gpus: Vec<(u32, Option<&str>)> =
        jobs.iter().map(|job| (job.gpus, job.gpu_type.as_deref())).collect();
    assert_eq!(gpus, [(8, Some("a100")), (6, None)]);
    let bare = "End|Start|JobID|Submit|AllocTRES|\n\
                2026-03-02T09:00:00|2026-03-02T08:00:00|7|2026-03-02T07:00:00|gres/gpu:h100=2|\n\
                Unknown|2026-03-02T08:00:00|8|2026-03-02T07:00:00|gres/gpu:h100=2|\n";
    let trace = read(bare.as_bytes(), "t").unwrap();
    assert_eq!((trace.jobs.len(), trace.jobs[0].length), (1, Length::Seconds(3600.0)));
    for (row, word) in [
        ("x|1|yesterday|00:10:00|gres/gpu=1", "column Submit: found \"yesterday\""),
        ("x|1|2026-03-02T07:00:00|soon|gres/gpu=1", "column Elapsed: found \"soon\""),
        ("x|1|2026-03-02T07:00:00|00:10:00|gres/gpu=many", "column AllocTRES"),
        ("a|b|1|2026-03-02T07:00:00|00:10:00|gres/gpu=1", "leave JobName out"),
    ] {
        let text = format!("JobName|JobID|Submit|Elapsed|AllocTRES\n{row}\n");
        let error = read(text.as_bytes(), "t").unwrap_err().to_string();
        assert!(error.starts_with("t:2: ") && error.contains(word), "{error}");
    }
}

#[test]
fn philly_log_attempts_add_up() {
    assert_eq!(
        logged(Format::PhillyLog),
        [
            row("application_1_0004", "cho", 1, 0.0, 1800.0),
            row("application_1_0001", "ann", 4, 690.0, 7260.0),
        ]
    );
    assert_eq!(
        read_small(Format::PhillyLog).notes[..2],
        [
            "left out 2 of 4 jobs: 1 that never started, 1 still running",
            "changed jobs: 1 with several attempts (taken as their sum)",
        ]
    );
    let text = std::str::from_utf8(small(Format::PhillyLog)[0].0).unwrap();
    for (from, to, word) in [
        ("2017-10-07 01:20:00", "at dawn", "t:5: column start_time: found \"at dawn\""),
        ("\"attempts\": []", "\"tries\": []", "missing field `attempts`"),
        ("_0002", "_0001", "job ids that differ"),
    ] {
        // The second job gets an attempt, as jobs without one are left out before their id counts.
        let attempt = "\"attempts\": [{\"start_time\": \"2017-10-07 02:00:00\", \
                       \"end_time\": \"2017-10-07 02:00:01\", \"detail\": [{\"gpus\": [0]}]}]";
        let wrong = match word.starts_with("missing") {
            true => text.replace(from, to),
            false => text.replace("\"attempts\": []", attempt).replacen(from, to, 1),
        };
        let error = read(wrong.as_bytes(), "t").unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn helios_and_acme_leave_out_what_never_ran_on_gpus() {
    assert_eq!(
        logged(Format::Helios),
        [
            row("501", "uA1", 8, 0.0, 36_000.0),
            row("503", "uB2", 16, 240.0, 249.0),
            row("505", "uC3", 1, 840.0, 1.0),
        ]
    );
    let note = &read_small(Format::Helios).notes[0];
    assert_eq!(note, "left out 2 of 5 jobs: 1 without GPUs, 1 that never started");
    // The second one is written in another time zone.
    assert_eq!(
        logged(Format::Acme),
        [row("dlc01", "u10", 64, 0.0, 3600.0), row("dlc03", "u11", 8, 600.0, 1800.0)]
    );
    let note = &read_small(Format::Acme).notes[0];
    assert_eq!(note, "left out 2 of 4 jobs: 1 without GPUs, 1 that never started");
}

#[test]
fn pai_tasks_become_jobs() {
    let expected = [
        row("job01", "ann", 1, 0.0, 600.0),
        row("job02", "bob", 4, 1090.0, 3600.0),
        row("job03", "ann", 8, 2050.0, 30.0),
    ];
    assert_eq!(logged(Format::Pai), expected);
    assert_eq!(
        read_small(Format::Pai).notes[..2],
        [
            "left out 3 of 6 jobs: 1 still running or waiting, 1 without GPUs, \
             1 without a start and a later end",
            "changed jobs: 1 with a fraction of a GPU (given whole ones)",
        ]
    );
    // The table of tasks is enough, and may have a header of its own.
    let tables = small(Format::Pai);
    let alone = read(tables[0].0, "tasks.csv").unwrap();
    assert_eq!((alone.jobs.len(), alone.jobs[1].submit_s), (3, 1010.0));
    assert!(alone.notes[0].contains("pai_job_table.csv"), "{:?}", alone.notes);
    let with_header = [tables[1].0, tables[0].0].concat();
    assert_eq!(read(&with_header, "tasks.csv").unwrap().jobs, alone.jobs);
}

#[test]
fn lingjun_workers_bring_the_gpus() {
    assert_eq!(
        logged(Format::Lingjun),
        [row("dlc1", "7", 16, 0.0, 10_800.0), row("dlc2", "8", 1, 660.0, 30.0)]
    );
    let trace = read_small(Format::Lingjun);
    assert_eq!(trace.jobs[0].profile.name, "bert", "the library knows this model");
    assert_eq!(
        trace.notes[..3],
        [
            "left out 3 of 5 jobs: 1 that never started, 1 still running, 1 without GPUs",
            "changed jobs: 1 of less than a minute (taken as 30 s)",
            "models of 1 of 2 jobs are drawn by GPU-time class with seed 7: the trace names none",
        ]
    );
}

#[test]
fn a_log_of_which_nothing_is_left_says_why() {
    let text = "job_id,vc,gpu_num,state,submit_time,duration\n\
                1,v,0,COMPLETED,2020-06-09 18:41:00,5\n2,v,0,FAILED,2020-06-09 18:41:00,5\n";
    let error = read(text.as_bytes(), "t.csv").unwrap_err().to_string();
    assert_eq!(error, "t.csv has 2 jobs, and all are left out: 2 without GPUs");
}

#[test]
fn a_trace_is_described() {
    let info = trace::describe(&read_small(Format::Tiresias), Some(10));
    assert_eq!((info.jobs, info.span_s), (3, 53.0));
    let gpu_s = 164.0 + 8.0 * 147.0 + 2.0 * 127.0;
    assert!((info.gpu_hours - gpu_s / 3600.0).abs() < 1e-9);
    assert!((info.offered_load.unwrap() - gpu_s / 530.0).abs() < 1e-9);
    assert_eq!(info.models[0].model, "vgg11");
    assert_eq!(info.demand[&8], 1);
}
