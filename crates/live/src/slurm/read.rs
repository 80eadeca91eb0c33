//! Reads what Slurm's commands print. The text forms are the same from Slurm 20.11 on; the JSON
//! ones change with every release.
//!
//! Users choose names and comments, so nothing that a user wrote may be taken for a field: rows
//! hold no such text, and in a job's record a field counts only where Slurm itself puts it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hither_core::Seconds;
use hither_sched::cluster::Status;
use hither_sched::event::End;
use hither_sched::job::{Host, Split};
use hither_sched::topo;

use super::trouble;
use crate::engine::{Counts, Error, Held, Key, Limit, Obstacle, Scope, SeenNode, Stands, Wants};

/// The columns of [`Row`], as `squeue -o` takes them.
pub const ROW: &str = "%i|%T|%Q|%P|%n|%N|%S|%a|%q|%r";

/// One line of squeue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub key: Key,
    pub stands: Stands,
    pub partitions: Vec<String>,
    pub required: String,
    pub nodes: String,
    pub started: String,
    pub account: String,
    pub qos: String,
    pub reason: String,
}

/// All rows, and the states that this program does not know.
pub fn rows(text: &str) -> Result<(Vec<Row>, BTreeSet<String>), Error> {
    let mut unknown = BTreeSet::new();
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let rows = lines.map(|line| row(line, &mut unknown)).collect::<Result<_, _>>()?;
    Ok((rows, unknown))
}

fn row(line: &str, unknown: &mut BTreeSet<String>) -> Result<Row, Error> {
    let wrong = || trouble::output("squeue", line);
    let fields: Vec<&str> = line.splitn(10, '|').map(str::trim).collect();
    let [key, state, priority, partitions, required, nodes, started, account, qos, reason] =
        fields[..]
    else {
        return Err(wrong());
    };
    if !key.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(wrong());
    }
    // A state of a later release must not blind the scheduler to all other jobs.
    let stands = stands(state, priority == "0").unwrap_or_else(|| {
        unknown.insert(state.to_owned());
        Stands::Leaving
    });
    let known =
        |text: &str| if matches!(text, "(null)" | "N/A" | "None") { "" } else { text }.into();
    Ok(Row {
        key: key.into(),
        stands,
        partitions: partitions.split(',').map(str::to_owned).collect(),
        required: known(required),
        nodes: known(nodes),
        started: started.into(),
        account: known(account),
        qos: known(qos),
        reason: reason.into(),
    })
}

/// What a state of squeue's long form means here.
fn stands(state: &str, is_held: bool) -> Option<Stands> {
    Some(match state {
        "PENDING" if is_held => Stands::Held,
        "PENDING" | "REQUEUE_FED" | "EXPEDITING" => Stands::Queued,
        "REQUEUE_HOLD" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => Stands::Held,
        "RUNNING" | "SUSPENDED" | "CONFIGURING" | "RESIZING" | "STOPPED" | "SIGNALING"
        | "POWER_UP_NODE" => Stands::Running,
        "COMPLETING" | "REQUEUED" | "STAGE_OUT" | "UPDATE_DB" => Stands::Leaving,
        "COMPLETED" => Stands::Over(End::Finished),
        "CANCELLED" | "REVOKED" => Stands::Over(End::Cancelled),
        "FAILED" | "TIMEOUT" | "NODE_FAIL" | "PREEMPTED" | "BOOT_FAIL" | "DEADLINE"
        | "OUT_OF_MEMORY" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => Stands::Over(End::Failed),
        _ => return None,
    })
}

/// What the reason of a job that waits means here. Slurm has some two hundred; those that are not told apart are
/// `Priority`, `Resources` and the like, which say nothing yet.
pub fn obstacle(stands: Stands, reason: &str) -> Obstacle {
    let word: String = reason.chars().filter(char::is_ascii_alphanumeric).collect();
    let has = |part: &str| word.contains(part);
    let starts = |part: &str| word.starts_with(part);
    if stands == Stands::Held {
        return match word.as_str() {
            "JobHeldAdmin" | "JobHoldMaxRequeue" | "launchfailedrequeuedheld" => Obstacle::Hold,
            "BadConstraints" => Obstacle::Never,
            _ => Obstacle::None,
        };
    }
    if stands != Stands::Queued {
        return Obstacle::None;
    }
    let never = ["BadConstraints", "InvalidAccount", "InvalidQOS", "DependencyNeverSatisfied"];
    let never_in = ["PartitionTimeLimit", "PartitionNodeLimit", "NotAllowed", "ReservationDeleted"];
    if never.iter().any(|w| starts(w)) || never_in.iter().any(|part| has(part)) {
        return Obstacle::Never;
    }
    if starts("PartitionDown") || starts("PartitionInactive") || starts("FrontEndDown") {
        return Obstacle::Cluster;
    }
    if starts("Dependency") || starts("BeginTime") {
        return Obstacle::Early;
    }
    if starts("JobArrayTaskLimit") {
        return Obstacle::Limit(Scope::Array, Counts::Jobs);
    }
    if starts("ReqNodeNotAvail") || starts("NodeDown") || starts("Nodesrequiredforjob") {
        return Obstacle::Place;
    }
    let counts = match () {
        () if has("GRES") || has("Gres") => Counts::Gpus,
        () if has("MaxJobs") || has("GrpJobs") || has("JobsPer") || has("GrpSubmitJobs") => {
            Counts::Jobs
        }
        () => Counts::Other,
    };
    // What counts per user or per account is shared by those alone.
    let is_of_user = has("PerUser") || has("PU");
    match () {
        () if starts("QOS") && is_of_user => Obstacle::Limit(Scope::QosUser, counts),
        () if starts("QOSGrp") => Obstacle::Limit(Scope::Qos, counts),
        () if starts("AssocGrp") || starts("AssociationGrp") => {
            Obstacle::Limit(Scope::Account, counts)
        }
        () if starts("AssocMax") || starts("AssociationMax") || starts("AssocJobLimit") => {
            Obstacle::Limit(Scope::AccountUser, counts)
        }
        () if starts("QOS") || starts("Assoc") || starts("Max") || starts("Licenses") => {
            Obstacle::Limit(Scope::Job, Counts::Other)
        }
        () if starts("Reservation") || starts("BurstBuffer") => {
            Obstacle::Limit(Scope::Job, Counts::Other)
        }
        () => Obstacle::None,
    }
}

/// Limits on GPUs and jobs from `sacctmgr -nP show qos format=name,maxtrespu,maxjobspu,grptres,grpjobs`.
pub fn qos_limits(text: &str) -> Vec<Limit> {
    let mut limits = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('|').collect();
        let [qos, per_user, jobs_per_user, all, all_jobs] = fields[..] else { continue };
        let kinds = [
            (Scope::QosUser, Counts::Gpus, gres_limit(per_user)),
            (Scope::QosUser, Counts::Jobs, jobs_per_user.parse().ok()),
            (Scope::Qos, Counts::Gpus, gres_limit(all)),
            (Scope::Qos, Counts::Jobs, all_jobs.parse().ok()),
        ];
        for (scope, counts, max) in kinds {
            // The limit of each user stands under the QOS alone: whoever is in it has it.
            limits.extend(max.map(|max| Limit { scope, of: qos.to_owned(), counts, max }));
        }
    }
    limits
}

/// Limits from `sacctmgr -nP show assoc format=account,user,grptres,grpjobs,maxjobs`.
pub fn account_limits(text: &str) -> Vec<Limit> {
    let mut limits = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('|').collect();
        let [account, user, gpus, jobs, jobs_max] = fields[..] else { continue };
        let (scope, of) = match user {
            "" => (Scope::Account, account.to_owned()),
            user => (Scope::AccountUser, format!("{account} {user}")),
        };
        let jobs_max = if user.is_empty() { None } else { jobs_max.parse().ok() };
        for (counts, max) in [
            (Counts::Gpus, gres_limit(gpus)),
            (Counts::Jobs, jobs.parse().ok()),
            (Counts::Jobs, jobs_max),
        ] {
            limits.extend(max.map(|max| Limit { scope, of: of.clone(), counts, max }));
        }
    }
    limits
}

/// The GPUs of `cpu=100,gres/gpu=4`. Limits on one type of GPU show when they are reached.
fn gres_limit(tres: &str) -> Option<u32> {
    tres.split(',').find_map(|word| word.strip_prefix("gres/gpu="))?.parse().ok()
}

/// A job's record from `scontrol -d show job`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    pub name: String,
    pub user: String,
    pub comment: String,
    pub wants: Option<Wants>,
    pub holds: Vec<Held>,
    pub restarts: u32,
    pub can_requeue: bool,
    pub has_dependency: bool,
    pub submitted_s: Seconds,
    pub start_s: Option<Seconds>,
    pub limit_s: Option<Seconds>,
    /// Tasks of its array that may run at a time.
    pub throttle: Option<u32>,
}

/// Records by key.
pub fn records(text: &str) -> HashMap<Key, Record> {
    let mut records = HashMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(at) = line.find("JobId=") else { continue };
        // A prompt may stand before it.
        let (key, mut record) = title(&line[at..]);
        let mut fields: HashMap<&str, &str> = HashMap::new();
        while let Some(line) = lines.next_if(|line| line.starts_with("   ")) {
            body(line, &mut record, &mut fields);
        }
        finish(&mut record, &fields);
        records.insert(key, record);
    }
    records
}

/// The key from a record's first line, and what else stands there. The name is the last field and may hold
/// anything.
fn title(line: &str) -> (Key, Record) {
    let (fields, name) = line.split_once(" JobName=").unwrap_or((line, ""));
    let field =
        |key: &str| fields.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let key = match (field("ArrayJobId"), field("HetJobId")) {
        (Some(array), _) => format!("{array}_{}", field("ArrayTaskId").unwrap_or("*")),
        (None, Some(leader)) => format!("{leader}+{}", field("HetJobOffset").unwrap_or("0")),
        (None, None) => field("JobId").unwrap_or("").to_owned(),
    };
    let throttle = field("ArrayTaskThrottle").and_then(|text| text.parse().ok());
    (key, Record { name: name.to_owned(), throttle, ..Record::default() })
}

/// Lines that hold one field each, whose text is the user's.
const FREE: [&str; 11] = [
    "Comment=",
    "Command=",
    "SubmitLine=",
    "WorkDir=",
    "StdErr=",
    "StdIn=",
    "StdOut=",
    "AdminComment=",
    "Extra=",
    "MailUser=",
    "Container=",
];

fn body<'a>(line: &'a str, record: &mut Record, fields: &mut HashMap<&'a str, &'a str>) {
    let line = line.trim();
    if let Some(comment) = line.strip_prefix("Comment=") {
        record.comment = comment.trim().to_owned();
        return;
    }
    if let Some(features) = line.strip_prefix("Features=") {
        fields.entry("Features").or_insert(features.split(' ').next().unwrap_or(""));
        return;
    }
    if FREE.iter().any(|key| line.starts_with(key)) {
        return;
    }
    if let Some(rest) = line.strip_prefix("Nodes=") {
        record.holds.extend(held(rest));
        return;
    }
    for word in line.split(' ') {
        if let Some((key, value)) = word.split_once('=') {
            // The requests come after the user's text, all others before it.
            match key.starts_with("TresPer") {
                true => fields.insert(key, value),
                false => Some(*fields.entry(key).or_insert(value)),
            };
        }
    }
}

/// What is held by node, from `n[2-3] CPU_IDs=0-3,8 Mem=1024 GRES=gpu:a100:4(IDX:0-3)`.
fn held(text: &str) -> Vec<Held> {
    let word = |key: &str| text.split(' ').find_map(|word| word.strip_prefix(key)).unwrap_or("");
    let gpus = gpu_types(word("GRES=")).into_iter().map(|(count, _)| count).sum();
    let span = |ids: &str| {
        let (first, last) = ids.split_once('-').unwrap_or((ids, ids));
        Some(last.parse::<u32>().ok()?.saturating_sub(first.parse().ok()?) + 1)
    };
    let cpus = word("CPU_IDs=").split(',').filter_map(span).sum();
    let host = Host { cpus, memory_mb: word("Mem=").parse().unwrap_or(0) };
    let names = topo::expand(text.split(' ').next().unwrap_or("")).unwrap_or_default();
    names.into_iter().map(|node| Held { node, gpus, host }).collect()
}

fn finish(record: &mut Record, fields: &HashMap<&str, &str>) {
    let field = |key: &str| {
        fields.get(key).copied().filter(|v| !matches!(*v, "(null)" | "N/A" | "Unknown" | "None"))
    };
    let number = |key: &str| field(key).and_then(|text| text.parse::<f64>().ok());
    record.user = field("UserId").unwrap_or("").split('(').next().unwrap_or("").to_owned();
    record.restarts = number("Restarts").unwrap_or(0.0) as u32;
    // salloc and srun make jobs that only their user can start again.
    record.can_requeue = field("Requeue") == Some("1") && field("BatchFlag") == Some("1");
    record.has_dependency = field("Dependency").is_some();
    record.submitted_s = number("SubmitTime").unwrap_or(0.0);
    record.start_s = number("StartTime");
    record.limit_s = field("TimeLimit").and_then(duration_s);
    record.wants = Some(wants(&field));
}

/// The GPUs that a job asks for, and how they may be split over nodes.
fn wants<'a>(field: &impl Fn(&str) -> Option<&'a str>) -> Wants {
    const REQUESTS: [&str; 4] = ["TresPerJob", "TresPerNode", "TresPerTask", "TresPerSocket"];
    let words = |keys: &[&str]| {
        let words = keys.iter().filter_map(|key| Some(format!("{key}={}", field(key)?)));
        words.collect::<Vec<_>>().join(" ")
    };
    if field("HetJobIdSet").is_some() {
        return Wants::Other("several groups of nodes (a heterogeneous job)".into());
    }
    if REQUESTS.iter().any(|key| field(key).is_some_and(|tres| gpu_types(tres).len() > 1)) {
        return Wants::Other(words(&REQUESTS));
    }
    let [per_job, per_node, per_task, per_socket] = REQUESTS.map(|key| field(key).and_then(gpus));
    let number = |text: &str| text.split(['-', ':']).next().unwrap_or("").parse::<u32>().ok();
    let asked = |key: &str| field(key).and_then(number).unwrap_or(0);
    // A range is the user's word, and stays when Hither binds the job; a single number is Slurm's estimate.
    let nodes = field("NumNodes").filter(|text| text.contains('-')).and_then(number).unwrap_or(0);
    let tasks_per_node = asked("NtasksPerN:B:S:C");
    let is_one_process = asked("NumTasks") == 1 && asked("CPUs/Task") > 1;
    let whole = |count: u32, split: Split, gpu_type| Wants::Gpus { count, gpu_type, split };
    let evenly = |count: u32, gpu_type| {
        let fits = nodes > 0 && count.is_multiple_of(nodes);
        fits.then(|| whole(count, Split::even(count / nodes), gpu_type))
    };
    let wants = match (per_job, per_node, per_task, per_socket) {
        (None, None, None, None) => Some(Wants::Nothing),
        (Some((count, gpu_type)), None, None, None) if nodes <= 1 => {
            let split = if is_one_process { Split::even(count) } else { Split::ANY };
            Some(whole(count, split, gpu_type))
        }
        (Some((count, gpu_type)), None, None, None) => evenly(count, gpu_type),
        (_, Some((gpus, gpu_type)), None, None) => {
            let nodes = asked("NumNodes").max(1);
            Some(whole(gpus * nodes, Split::even(gpus), gpu_type))
        }
        (None, None, Some((gpus, gpu_type)), None) => {
            let count = gpus * asked("NumTasks").max(1);
            let chunks_max = if tasks_per_node > 0 { tasks_per_node } else { u32::MAX };
            match nodes > 1 {
                true => evenly(count, gpu_type).filter(|_| (count / nodes).is_multiple_of(gpus)),
                false => Some(whole(
                    count,
                    Split { chunk: gpus, chunks_max, host: Host::NONE },
                    gpu_type,
                )),
            }
        }
        _ => None,
    };
    let is_set = |key: &&&str| match **key {
        "OverSubscribe" => field("OverSubscribe").is_some_and(|word| !matches!(word, "OK" | "YES")),
        "Contiguous" => field("Contiguous") == Some("1"),
        key => field(key).is_some(),
    };
    const CONSTRAINTS: [&str; 5] =
        ["ExcNodeList", "Features", "Reservation", "OverSubscribe", "Contiguous"];
    let set: Vec<&str> = CONSTRAINTS.iter().filter(is_set).copied().collect();
    match wants {
        Some(Wants::Gpus { .. }) if !set.is_empty() => Wants::Other(words(&set)),
        Some(Wants::Gpus { count, gpu_type, split }) => {
            let host = host(field, count, split);
            Wants::Gpus { count, gpu_type, split: Split { host, ..split } }
        }
        Some(wants) => wants,
        None => Wants::Other(words(&[&REQUESTS[..], &["NumNodes"]].concat())),
    }
}

/// CPUs and memory that a chunk of the job needs.
fn host<'a>(field: &impl Fn(&str) -> Option<&'a str>, gpus: u32, split: Split) -> Host {
    let chunks = (gpus / split.chunk.max(1)).max(1);
    let number = |text: &str| text.split(['-', ':']).next().unwrap_or("").parse::<u32>().ok();
    let per_gpu =
        |key: &str| field(key).and_then(|text| text.rsplit(':').next()?.parse::<u32>().ok());
    let cpus = match per_gpu("CpusPerTres") {
        Some(cpus) => cpus.saturating_mul(split.chunk),
        None => field("NumCPUs").and_then(number).unwrap_or(1).div_ceil(chunks),
    };
    let of_chunk = |mb: u64, parts: u32| mb.saturating_mul(u64::from(parts)) as f64;
    let megabytes = |key: &str| field(key).and_then(megabytes).filter(|mb| *mb > 0);
    let memory_mb = if let Some(mb) = megabytes("MinMemoryCPU") {
        of_chunk(mb, cpus)
    } else if let Some(mb) = per_gpu("MemPerTres") {
        of_chunk(u64::from(mb), split.chunk)
    } else {
        // The same on every node, however many chunks it has.
        megabytes("MinMemoryNode").unwrap_or(0) as f64 / f64::from(split.chunks_max.min(chunks))
    };
    // Whole gigabytes, so that jobs which ask for nearly the same are alike.
    let memory_mb = (memory_mb / 1024.0).ceil() * 1024.0;
    Host { cpus, memory_mb: memory_mb as u32 }
}

/// `64000M`, `62.50G`, `4096`: megabytes.
fn megabytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "K" => 1.0 / 1024.0,
        "" | "M" => 1.0,
        "G" => 1024.0,
        "T" => 1024.0 * 1024.0,
        _ => return None,
    };
    Some((digits.parse::<f64>().ok()? * factor).ceil() as u64)
}

/// The GPUs of `gpu:a100:4(S:0-1)`, `gres:gpu:4`, `gres/gpu=4`, or `gpu`, among other resources. Of several
/// types, all together under the last one's name.
pub fn gpus(text: &str) -> Option<(u32, Option<String>)> {
    let types = gpu_types(text);
    let total = types.iter().map(|(count, _)| count).sum();
    (total > 0).then(|| (total, types.into_iter().next_back().and_then(|(_, name)| name)))
}

/// The GPUs by type, in the order of the text.
pub fn gpu_types(text: &str) -> Vec<(u32, Option<String>)> {
    let mut types: Vec<(u32, Option<String>)> = Vec::new();
    for item in items(text) {
        let item = item
            .trim()
            .strip_prefix("gres")
            .map_or(item, |rest| rest.trim_start_matches([':', '/']));
        let item = item.split('(').next().unwrap_or(item);
        let mut parts = item.split([':', '=']);
        if parts.next() != Some("gpu") {
            continue;
        }
        let (mut count, mut name) = (1, None);
        for part in parts {
            match part.parse() {
                Ok(number) => count = number,
                Err(_) => name = Some(part.to_owned()),
            }
        }
        match types.iter_mut().find(|known| known.1 == name) {
            Some(known) => known.0 += count,
            None => types.push((count, name)),
        }
    }
    types.retain(|(count, _)| *count > 0);
    types
}

/// Items between commas; those inside parentheses do not count.
fn items(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .collect()
}

/// `2-03:04:05`, `03:04:05`, `04:05`; `None`: no limit.
fn duration_s(text: &str) -> Option<Seconds> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds = 0.0;
    for part in clock.split(':') {
        seconds = 60.0 * seconds + part.parse::<f64>().ok()?;
    }
    Some(86_400.0 * days.parse::<f64>().ok()? + seconds)
}

/// Nodes that are kept for others during some time.
#[derive(Debug, Clone, PartialEq)]
pub struct Reservation {
    pub start_s: Seconds,
    pub end_s: Seconds,
    pub nodes: Vec<String>,
}

/// Reservations of nodes from `scontrol -o show reservation`.
pub fn reservations(text: &str) -> Vec<Reservation> {
    let reservation = |line: &str| {
        let value = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key));
        Some(Reservation {
            start_s: value("StartTime=")?.parse().ok()?,
            end_s: value("EndTime=")?.parse().ok()?,
            nodes: topo::expand(value("Nodes=")?).ok()?,
        })
    };
    text.lines().filter_map(reservation).collect()
}

/// The columns of [`nodes`], as `sinfo -N -o` takes them.
pub const NODE: &str = "%N|%T|%G|%c|%m|%a";

/// Nodes with GPUs by name, and notes on those that Hither leaves to Slurm. A node that stands in several
/// partitions has a line for each.
pub fn nodes(text: &str) -> Result<(BTreeMap<String, SeenNode>, Vec<String>), Error> {
    let (mut nodes, mut notes) = (BTreeMap::new(), BTreeSet::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [name, state, gres, cpus, memory_mb, partition] = fields[..] else {
            return Err(trouble::output("sinfo", line));
        };
        let types = gpu_types(gres);
        let [(gpus, gpu_type)] = &types[..] else {
            if !types.is_empty() {
                notes.insert(format!(
                    "node {name} has GPUs of several types ({gres}): its GPUs are left to Slurm"
                ));
            }
            continue;
        };
        let is_up = partition == "up";
        let node = SeenNode {
            gpus: *gpus,
            gpu_type: gpu_type.clone().unwrap_or_else(|| "gpu".into()),
            host: Host {
                cpus: cpus.parse().unwrap_or(u32::MAX),
                memory_mb: memory_mb.parse().unwrap_or(u32::MAX),
            },
            status: if is_up { status(state) } else { Status::Draining },
            state: if is_up {
                state.to_owned()
            } else {
                format!("{state}, its partition {partition}")
            },
        };
        // One partition that takes jobs is enough.
        let known: &mut SeenNode = nodes.entry(name.to_owned()).or_insert_with(|| node.clone());
        if node.status == Status::Up {
            *known = node;
        }
    }
    Ok((nodes, notes.into_iter().collect()))
}

/// A node that takes no jobs is draining here, whatever its jobs do: their own rows tell.
fn status(state: &str) -> Status {
    let takes_jobs =
        ["idle", "mixed", "allocated", "completing", "planned", "mix", "alloc", "comp"];
    // `~`: it is powered down, and Slurm powers it up for a job; `#`: it is on its way up; `-`: planned by
    // backfill; `@`: it reboots when it is empty. Others take no jobs: `*` does not respond, `%` and `!` are
    // powered down, `$` is under maintenance, `^` reboots.
    let base = state.trim_end_matches(['~', '#', '-', '+', '@']);
    match takes_jobs.contains(&base) {
        true => Status::Up,
        false => Status::Draining,
    }
}

/// The year and month of a release from `slurm-wlm 22.05.8`.
pub fn version(text: &str) -> Option<(u32, u32)> {
    let word = text.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut parts = word.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Text for the reader of topology.conf, from `scontrol show topology`: there a switch also lists
/// the nodes below its switches.
pub fn topology_conf(text: &str) -> String {
    let mut conf = String::new();
    for line in text.lines().filter(|l| l.starts_with("SwitchName=") || l.starts_with("BlockName="))
    {
        let is_upper = line.contains(" Switches=");
        let keeps = |word: &&str| {
            ["SwitchName=", "BlockName=", "Switches="].iter().any(|key| word.starts_with(key))
                || (word.starts_with("Nodes=") && !is_upper)
        };
        let words: Vec<&str> = line.split_whitespace().filter(keeps).collect();
        conf.push_str(&words.join(" "));
        conf.push('\n');
    }
    conf
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "\
scontrol: show job 1
JobId=1 JobName=a JobState=COMPLETED b
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:01 TimeLimit=1-00:00:30 TimeMin=N/A
   SubmitTime=1794874224 EligibleTime=1794874224
   StartTime=1794874225 EndTime=1794874325 Deadline=N/A
   ReqNodeList=n[2-3] ExcNodeList=(null)
   NodeList=n[2-3]
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:a100:6
     Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:a100:4(IDX:0-3)
     Nodes=n3 CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0,2)
   Command=/x Restarts=9
   Comment=hither: model=bert Requeue=0
   TresPerJob=gres:gpu:99
   Restarts=7
   StdOut=/tmp/o
   TresPerJob=gres/gpu:a100:6

";

    #[test]
    fn a_record_is_read_and_users_cannot_forge_fields() {
        let records = records(RECORD);
        let record = &records["1"];
        assert_eq!(record.name, "a JobState=COMPLETED b");
        assert_eq!((record.user.as_str(), record.restarts, record.can_requeue), ("ada", 2, true));
        assert_eq!(record.comment, "hither: model=bert Requeue=0");
        let held = |node: &str, gpus| Held {
            node: node.into(),
            gpus,
            host: Host { cpus: 1, memory_mb: 0 },
        };
        assert_eq!(record.holds, [held("n2", 4), held("n3", 2)]);
        assert_eq!(record.limit_s, Some(86_430.0));
        let split = Split { host: Host { cpus: 1, memory_mb: 0 }, ..Split::ANY };
        let wants = Wants::Gpus { count: 6, gpu_type: Some("a100".into()), split };
        assert_eq!(record.wants, Some(wants));
    }

    #[test]
    fn gpus_are_counted_in_every_spelling() {
        let typed = |n, t: &str| Some((n, Some(t.to_owned())));
        assert_eq!(gpus("gpu:a100:4(S:0-1)"), typed(4, "a100"));
        assert_eq!(gpus("gres:gpu:a100:3"), typed(3, "a100"));
        assert_eq!(gpus("gres/gpu:3"), Some((3, None)));
        assert_eq!(gpus("gres/gpu=3"), Some((3, None)));
        assert_eq!(gpus("craynetwork:4,gpu:2(IDX:0,3)"), Some((2, None)));
        assert_eq!(gpus("gpu"), Some((1, None)));
        assert_eq!(gpus("gpu:0"), None);
        assert_eq!(gpus("(null)"), None);
        assert_eq!(gpus("cpu:4"), None);
    }

    #[test]
    fn rows_are_read_or_refused() {
        let (read, unknown) = rows(
            "12_3|PENDING|0|gpu,big|n[0-1]||N/A|ml|normal|JobHeldUser\n\
                  13|DANCING|1|gpu||n0|N/A|(null)|(null)|None\n",
        )
        .unwrap();
        let row = &read[0];
        assert_eq!((row.account.as_str(), row.qos.as_str()), ("ml", "normal"));
        // A state that nobody knows holds its GPUs, and blinds nobody to the other jobs.
        assert_eq!((read[1].stands, read[1].account.as_str()), (Stands::Leaving, ""));
        assert_eq!(unknown, BTreeSet::from(["DANCING".to_owned()]));
        assert_eq!((row.key.as_str(), row.stands), ("12_3", Stands::Held));
        assert_eq!((row.required.as_str(), row.nodes.as_str()), ("n[0-1]", ""));
        assert_eq!(row.partitions, ["gpu", "big"]);
        for bad in ["12|RUNNING|0", "x|RUNNING|1|gpu||||||"] {
            assert!(rows(bad).is_err(), "{bad}");
        }
    }

    /// What a job wants whose record holds these lines.
    fn wanted(lines: &str) -> Wants {
        let lines: String = lines.lines().map(|line| format!("   {}\n", line.trim())).collect();
        let text = format!("JobId=1 JobName=a\n{lines}\n");
        records(&text).remove("1").unwrap().wants.unwrap()
    }

    fn gang(count: u32, chunk: u32, chunks_max: u32) -> Wants {
        with_cpus(count, chunk, chunks_max, 1)
    }

    fn with_cpus(count: u32, chunk: u32, chunks_max: u32, cpus: u32) -> Wants {
        let split = Split { chunk, chunks_max, host: Host { cpus, memory_mb: 0 } };
        Wants::Gpus { count, gpu_type: None, split }
    }

    #[test]
    fn every_way_to_ask_for_gpus_has_its_split() {
        let any = u32::MAX;
        // --gpus=6
        assert_eq!(wanted("NumNodes=1\nTresPerJob=gres:gpu:6"), gang(6, 1, any));
        // -N2 --gpus=6, and when Hither has bound it
        assert_eq!(wanted("NumNodes=2-2\nTresPerJob=gres:gpu:6"), gang(6, 3, 1));
        let bound = |nodes: &str| {
            format!(
                "ReqNodeList=n[0-1] ExcNodeList=(null)\nNumNodes={nodes}\nTresPerJob=gres:gpu:6"
            )
        };
        assert_eq!(wanted(&bound("2-2")), gang(6, 3, 1));
        assert_eq!(wanted(&bound("1-2")), gang(6, 1, any));
        // One process stays on one machine: two nodes are Slurm's estimate.
        let one = "NumNodes=2 NumCPUs=8 NumTasks=1 CPUs/Task=8\nTresPerJob=gres:gpu:4";
        assert_eq!(wanted(one), with_cpus(4, 4, 1, 8));
        // -N2 --gpus-per-node=4, --gres=gpu:4
        assert_eq!(wanted("NumNodes=2-4\nTresPerNode=gres:gpu:4"), gang(8, 4, 1));
        assert_eq!(wanted("NumNodes=1\nTresPerNode=gres/gpu:4"), gang(4, 4, 1));
        // -n6 --gpus-per-task=2, also with --ntasks-per-node=2 and with -N3
        let tasks = "NumNodes=1 NumCPUs=6 NumTasks=6 CPUs/Task=1\nTresPerTask=gres:gpu:2";
        assert_eq!(wanted(tasks), gang(12, 2, any));
        let by_two = format!("{tasks}\nSocks/Node=* NtasksPerN:B:S:C=2:0:*:* CoreSpec=*");
        assert_eq!(wanted(&by_two), gang(12, 2, 2));
        assert_eq!(wanted(&tasks.replace("NumNodes=1", "NumNodes=3-3")), with_cpus(12, 4, 1, 2));
        assert_eq!(wanted("NumNodes=4 NumCPUs=4"), Wants::Nothing);
    }

    #[test]
    fn requests_that_hither_cannot_place_are_named() {
        let other = |lines: &str| match wanted(lines) {
            Wants::Other(words) => words,
            wants => panic!("{lines}: {wants:?}"),
        };
        assert_eq!(
            other("NumNodes=1\nTresPerSocket=gres:gpu:2"),
            "TresPerSocket=gres:gpu:2 NumNodes=1"
        );
        let uneven = "NumNodes=4-4\nTresPerJob=gres:gpu:6";
        assert_eq!(other(uneven), "TresPerJob=gres:gpu:6 NumNodes=4-4");
        let odd = "NumNodes=4-4 NumTasks=6\nTresPerTask=gres:gpu:2";
        assert_eq!(other(odd), "TresPerTask=gres:gpu:2 NumNodes=4-4");
        let picky = "NumNodes=1\nFeatures=ib DelayBoot=00:00:00\nTresPerJob=gres:gpu:2";
        assert_eq!(other(picky), "Features=ib");
        let avoids = "ReqNodeList=(null) ExcNodeList=n3\nNumNodes=1\nTresPerJob=gres:gpu:2";
        assert_eq!(other(avoids), "ExcNodeList=n3");
        let whole = "NumNodes=1\nOverSubscribe=NO Contiguous=0\nTresPerJob=gres:gpu:1";
        assert_eq!(other(whole), "OverSubscribe=NO");
        assert_eq!(other("NumNodes=1\nReservation=mm\nTresPerJob=gres:gpu:1"), "Reservation=mm");
        let two = "NumNodes=1\nTresPerJob=gres:gpu:a100:1,gres:gpu:h100:1";
        assert_eq!(other(two), "TresPerJob=gres:gpu:a100:1,gres:gpu:h100:1");
        assert!(
            other("HetJobIdSet=8-9\nNumNodes=1\nTresPerJob=gres:gpu:1").contains("heterogeneous")
        );
    }

    /// A held job as 25.11 shows it: other spellings of GPUs, and fields that 22.05 does not have.
    const LATER: &str = "\
JobId=12 JobName=train.sh
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   Priority=0 Nice=0 Account=ml QOS=normal
   JobState=PENDING Reason=JobHeldUser Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   DerivedExitCode=0:0
   RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A
   SubmitTime=1794874224 EligibleTime=Unknown
   AccrueTime=Unknown
   StartTime=Unknown EndTime=Unknown Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=1794874224 Scheduler=Main
   Partition=gpu AllocNode:Sid=login:4242
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=
   StepMgrEnabled=Yes
   NumNodes=2-2 NumCPUs=16 NumTasks=2 CPUs/Task=8 ReqB:S:C:T=0:0:*:*
   ReqTRES=cpu=16,mem=2M,node=2,billing=16,gres/gpu=8,gres/gpu:a100=8
   AllocTRES=(null)
   Socks/Node=* NtasksPerN:B:S:C=1:0:*:* CoreSpec=*
   MinCPUsNode=8 MinMemoryNode=0 MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) LicensesAlloc=(null) Network=(null)
   Command=/home/ada/train.sh
   SubmitLine=sbatch -N2 --gpus-per-node=a100:4 Restarts=4 train.sh
   WorkDir=/home/ada
   Comment=hither: model=bert
   TresPerNode=gres/gpu:a100:4
   TresPerTask=cpu=8

";

    #[test]
    fn records_of_a_later_release_are_read() {
        let record = &records(LATER)["12"];
        let split = Split { host: Host { cpus: 8, memory_mb: 0 }, ..Split::even(4) };
        let wants = Wants::Gpus { count: 8, gpu_type: Some("a100".into()), split };
        assert_eq!(record.wants, Some(wants));
        assert_eq!((record.can_requeue, record.has_dependency), (false, false));
        assert_eq!((record.comment.as_str(), record.limit_s), ("hither: model=bert", Some(3600.0)));
    }

    #[test]
    fn nodes_and_versions() {
        let text = "n0|idle|gpu:a100:4(S:0)|16|64000|up\nn1|drained*|gpu:4|16|64000|up\n\
                    login|idle|(null)|4|8000|up\nn2|idle~|gpu:4|16|64000|up\n\
                    n3|idle|gpu:4|16|64000|down\nn4|idle|gpu:4|16|64000|down\nn4|idle|gpu:4|16|64000|up\n\
                    n5|idle|gpu:a100:6,gpu:1g.5gb:14|16|64000|up\nn6|idle%|gpu:4|16|64000|up\n";
        let (nodes, notes) = nodes(text).unwrap();
        let names: Vec<&str> = nodes.keys().map(String::as_str).collect();
        assert_eq!(names, ["n0", "n1", "n2", "n3", "n4", "n6"]);
        let host = Host { cpus: 16, memory_mb: 64_000 };
        assert_eq!((nodes["n0"].gpus, nodes["n0"].host), (4, host));
        let up = ["n0", "n2", "n4"];
        for (name, node) in &nodes {
            assert_eq!(node.status == Status::Up, up.contains(&name.as_str()), "{name}");
        }
        assert!(notes.len() == 1 && notes[0].contains("n5"), "{notes:?}");
        assert_eq!(version("slurm-wlm 22.05.8"), Some((22, 5)));
        assert_eq!(version("slurm 25.11.0-0rc1"), Some((25, 11)));
        assert_eq!(version("bash"), None);
    }

    #[test]
    fn reasons_say_what_may_help() {
        use Obstacle as O;
        let queued = |reason| obstacle(Stands::Queued, reason);
        let limit = O::Limit;
        #[rustfmt::skip]
        let rows = [
            ("None", O::None), ("Priority", O::None), ("Resources", O::None),
            ("QOSMaxGRESPerUser", limit(Scope::QosUser, Counts::Gpus)),
            ("QOSGrpGRES", limit(Scope::Qos, Counts::Gpus)),
            ("QOSMaxJobsPerUserLimit", limit(Scope::QosUser, Counts::Jobs)),
            ("QOSMaxCpuPerUserLimit", limit(Scope::QosUser, Counts::Other)),
            ("AssocGrpGRES", limit(Scope::Account, Counts::Gpus)),
            ("AssocMaxJobsLimit", limit(Scope::AccountUser, Counts::Jobs)),
            ("AssocGrpCPUMinutesLimit", limit(Scope::Account, Counts::Other)),
            ("JobArrayTaskLimit", limit(Scope::Array, Counts::Jobs)),
            ("Licenses", limit(Scope::Job, Counts::Other)),
            ("PartitionDown", O::Cluster), ("PartitionInactive", O::Cluster),
            ("Dependency", O::Early), ("BeginTime", O::Early),
            ("DependencyNeverSatisfied", O::Never), ("PartitionTimeLimit", O::Never),
            ("(ReqNodeNotAvail, UnavailableNodes:n1)", O::Place),
            ("ReqNodeNotAvail, Reserved for maintenance", O::Place),
            ("Nodes required for job are DOWN, DRAINED or reserved", O::Place),
        ];
        for (reason, expected) in rows {
            assert_eq!(queued(reason), expected, "{reason}");
            assert_eq!(obstacle(Stands::Running, reason), O::None, "{reason}");
        }
        let held = |reason| obstacle(Stands::Held, reason);
        assert_eq!((held("JobHeldUser"), held("JobHeldAdmin")), (O::None, O::Hold));
        assert_eq!(held("job requeued in held state"), O::None);
        assert_eq!(held("launch failed requeued held"), O::Hold);
    }

    #[test]
    fn limits_are_read_from_accounting() {
        let limit = |scope, of: &str, counts, max| Limit { scope, of: of.into(), counts, max };
        assert_eq!(
            qos_limits("normal|cpu=9,gres/gpu=4||gres/gpu:a100=3|\nlow||2||7\n"),
            [
                limit(Scope::QosUser, "normal", Counts::Gpus, 4),
                limit(Scope::QosUser, "low", Counts::Jobs, 2),
                limit(Scope::Qos, "low", Counts::Jobs, 7),
            ]
        );
        assert_eq!(
            account_limits("ml||gres/gpu=8||3\nml|ada|||5\n"),
            [
                limit(Scope::Account, "ml", Counts::Gpus, 8),
                limit(Scope::AccountUser, "ml ada", Counts::Jobs, 5),
            ]
        );
    }

    #[test]
    fn jobs_of_several_parts_and_arrays_have_keys() {
        let text = "JobId=124 HetJobId=123 HetJobOffset=1 JobName=x\n   HetJobIdSet=123-124\n\n\
                    JobId=9 ArrayJobId=7 ArrayTaskId=2 ArrayTaskThrottle=3 JobName=y\n   Requeue=1\n";
        let records = records(text);
        assert!(matches!(records["123+1"].wants, Some(Wants::Other(_))));
        assert_eq!(records["7_2"].throttle, Some(3));
    }

    #[test]
    fn memory_is_what_a_chunk_needs() {
        let memory = |lines: &str| match wanted(lines) {
            Wants::Gpus { split, .. } => split.host,
            wants => panic!("{wants:?}"),
        };
        let host = |cpus, gb: u32| Host { cpus, memory_mb: gb * 1024 };
        let per_cpu =
            "NumNodes=1 NumCPUs=8\nMinCPUsNode=8 MinMemoryCPU=1500M\nTresPerNode=gres:gpu:2";
        assert_eq!(memory(per_cpu), host(8, 12));
        let per_node = "NumNodes=2-2 NumCPUs=8\nMinMemoryNode=62.5G\nTresPerNode=gres:gpu:2";
        assert_eq!(memory(per_node), host(4, 63));
        let per_gpu = "NumNodes=1 NumCPUs=4\nMemPerTres=gres:gpu:2048 CpusPerTres=gres:gpu:3\n\
                       TresPerJob=gres:gpu:4";
        assert_eq!(memory(per_gpu), host(3, 2));
    }

    #[test]
    fn upper_switches_keep_only_their_switches() {
        let shown = "SwitchName=r0 Level=0 LinkSpeed=1 Nodes=n[0-3]\n\
                     SwitchName=top Level=1 LinkSpeed=1 Nodes=n[0-7] Switches=r[0-1]\n";
        assert_eq!(
            topology_conf(shown),
            "SwitchName=r0 Nodes=n[0-3]\nSwitchName=top Switches=r[0-1]\n"
        );
    }

    #[test]
    fn reservations_are_read() {
        let text = "\
ReservationName=mm StartTime=1795000000 EndTime=1795003600 Duration=01:00:00 Nodes=n[0-1] NodeCnt=2 \
CoreCnt=128 Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES TRES=cpu=128 Users=root State=INACTIVE
ReservationName=lic StartTime=1795000000 EndTime=1795003600 Duration=01:00:00 Nodes=(null) NodeCnt=0 Users=root
";
        let read = super::reservations(text);
        let nodes = vec!["n0".to_owned(), "n1".to_owned()];
        let expected =
            Reservation { start_s: 1_795_000_000.0, end_s: 1_795_003_600.0, nodes: nodes.clone() };
        assert_eq!(read[0], expected);
        assert!(read[1..].iter().all(|r| !nodes.iter().any(|node| r.nodes.contains(node))));
        assert!(super::reservations("No reservations in the system\n").is_empty());
    }
}
