//! Reads what Slurm's commands print. The text forms are the same from Slurm 20.11 on; the JSON
//! ones change with every release.
//!
//! Users choose names and comments, so nothing that a user wrote may be taken for a field: rows
//! hold no such text, and in a job's record a field counts only where Slurm itself puts it.

use std::collections::HashMap;

use hither_core::Seconds;
use hither_sched::cluster::Status;
use hither_sched::event::End;
use hither_sched::job::Split;
use hither_sched::topo;

use crate::engine::{Error, Key, SeenNode, Stands, Wants};

/// The columns of [`Row`], as `squeue -o` takes them.
pub const ROW: &str = "%i|%T|%Q|%P|%n|%N|%S|%r";

/// One line of squeue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub key: Key,
    pub stands: Stands,
    pub partitions: Vec<String>,
    pub required: String,
    pub nodes: String,
    pub started: String,
    pub reason: String,
}

pub fn rows(text: &str) -> Result<Vec<Row>, Error> {
    text.lines().filter(|line| !line.trim().is_empty()).map(row).collect()
}

fn row(line: &str) -> Result<Row, Error> {
    let wrong =
        || Error::Output { command: "squeue".into(), line: line.chars().take(120).collect() };
    let fields: Vec<&str> = line.splitn(8, '|').map(str::trim).collect();
    let [key, state, priority, partitions, required, nodes, started, reason] = fields[..] else {
        return Err(wrong());
    };
    if !key.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(wrong());
    }
    let stands = stands(state, priority == "0").ok_or_else(wrong)?;
    let known =
        |text: &str| if matches!(text, "(null)" | "N/A" | "None") { "" } else { text }.into();
    Ok(Row {
        key: key.into(),
        stands,
        partitions: partitions.split(',').map(str::to_owned).collect(),
        required: known(required),
        nodes: known(nodes),
        started: started.into(),
        reason: reason.into(),
    })
}

/// What a state of squeue's long form means here.
fn stands(state: &str, is_held: bool) -> Option<Stands> {
    Some(match state {
        "PENDING" if is_held => Stands::Held,
        "PENDING" | "REQUEUE_FED" => Stands::Queued,
        "REQUEUE_HOLD" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => Stands::Held,
        "RUNNING" | "SUSPENDED" | "CONFIGURING" | "RESIZING" | "STOPPED" | "SIGNALING" => {
            Stands::Running
        }
        "COMPLETING" | "REQUEUED" | "STAGE_OUT" => Stands::Leaving,
        "COMPLETED" => Stands::Over(End::Finished),
        "CANCELLED" | "REVOKED" => Stands::Over(End::Cancelled),
        "FAILED" | "TIMEOUT" | "NODE_FAIL" | "PREEMPTED" | "BOOT_FAIL" | "DEADLINE"
        | "OUT_OF_MEMORY" => Stands::Over(End::Failed),
        _ => return None,
    })
}

/// A job's record from `scontrol -d show job`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    pub name: String,
    pub user: String,
    pub comment: String,
    pub wants: Option<Wants>,
    pub holds: Vec<(String, u32)>,
    pub restarts: u32,
    pub can_requeue: bool,
    pub has_dependency: bool,
    pub submitted_s: Seconds,
    pub start_s: Option<Seconds>,
    pub limit_s: Option<Seconds>,
}

/// Records by key. A record of an array that has not been split stands for all its tasks: it is
/// found under the array's id and a star.
pub fn records(text: &str) -> HashMap<Key, Record> {
    let mut records = HashMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(at) = line.find("JobId=") else { continue };
        // A prompt may stand before it.
        let (key, name) = title(&line[at..]);
        let mut record = Record { name, ..Record::default() };
        let mut fields: HashMap<&str, &str> = HashMap::new();
        while let Some(line) = lines.next_if(|line| line.starts_with("   ")) {
            body(line, &mut record, &mut fields);
        }
        finish(&mut record, &fields);
        records.insert(key, record);
    }
    records
}

/// The key and the name from a record's first line. The name is the last field and may hold
/// anything.
fn title(line: &str) -> (Key, String) {
    let (fields, name) = line.split_once(" JobName=").unwrap_or((line, ""));
    let field = |key: &str| {
        fields.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).unwrap_or("")
    };
    let (array, task) = (field("ArrayJobId"), field("ArrayTaskId"));
    let key = match task {
        "" => field("JobId").to_owned(),
        _ if task.bytes().all(|b| b.is_ascii_digit()) => format!("{array}_{task}"),
        _ => format!("{array}_*"),
    };
    (key, name.to_owned())
}

/// Lines that hold one field each, whose text is the user's.
const FREE: [&str; 8] = [
    "Comment=",
    "Command=",
    "SubmitLine=",
    "WorkDir=",
    "StdErr=",
    "StdIn=",
    "StdOut=",
    "AdminComment=",
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

/// GPUs by node from `n[2-3] CPU_IDs=0 Mem=0 GRES=gpu:a100:4(IDX:0-3)`.
fn held(text: &str) -> Vec<(String, u32)> {
    let nodes = text.split(' ').next().unwrap_or("");
    let gres = text.split(' ').find_map(|word| word.strip_prefix("GRES=")).unwrap_or("");
    let gpus = gpus(gres).map_or(0, |(count, _)| count);
    let names = topo::expand(nodes).unwrap_or_default();
    names.into_iter().filter(|_| gpus > 0).map(|name| (name, gpus)).collect()
}

fn finish(record: &mut Record, fields: &HashMap<&str, &str>) {
    let field = |key: &str| {
        fields.get(key).copied().filter(|v| !matches!(*v, "(null)" | "N/A" | "Unknown" | "None"))
    };
    let number = |key: &str| field(key).and_then(|text| text.parse::<f64>().ok());
    record.user = field("UserId").unwrap_or("").split('(').next().unwrap_or("").to_owned();
    record.restarts = number("Restarts").unwrap_or(0.0) as u32;
    record.can_requeue = field("Requeue") != Some("0");
    record.has_dependency = field("Dependency").is_some();
    record.submitted_s = number("SubmitTime").unwrap_or(0.0);
    record.start_s = number("StartTime");
    record.limit_s = field("TimeLimit").and_then(duration_s);
    record.wants = Some(wants(&field));
}

/// The GPUs that a job asks for, and how they may be split over nodes.
fn wants<'a>(field: &impl Fn(&str) -> Option<&'a str>) -> Wants {
    let [per_job, per_node, per_task, per_socket] =
        ["TresPerJob", "TresPerNode", "TresPerTask", "TresPerSocket"]
            .map(|key| field(key).and_then(gpus));
    let number = |text: &str| text.split(['-', ':']).next().unwrap_or("").parse::<u32>().ok();
    let asked = |key: &str| field(key).and_then(number).unwrap_or(0);
    // A node count that Hither has set itself is no wish of the user's.
    let nodes = if field("ReqNodeList").is_some() { 0 } else { asked("NumNodes") };
    let tasks_per_node = asked("NtasksPerN:B:S:C");
    let whole = |count: u32, split: Split, gpu_type| Wants::Gpus { count, gpu_type, split };
    let evenly = |count: u32, gpu_type| {
        let fits = nodes > 0 && count.is_multiple_of(nodes);
        fits.then(|| whole(count, Split::even(count / nodes), gpu_type))
    };
    let wants = match (per_job, per_node, per_task, per_socket) {
        (None, None, None, None) => Some(Wants::Nothing),
        (Some((count, gpu_type)), None, None, None) if nodes <= 1 => {
            Some(whole(count, Split::ANY, gpu_type))
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
                false => Some(whole(count, Split { chunk: gpus, chunks_max }, gpu_type)),
            }
        }
        _ => None,
    };
    let named = ["TresPerJob", "TresPerNode", "TresPerTask", "TresPerSocket", "NumNodes"];
    let constraints = ["ExcNodeList", "Features"];
    let words = |keys: &[&str]| {
        let words = keys.iter().filter_map(|key| Some(format!("{key}={}", field(key)?)));
        words.collect::<Vec<_>>().join(" ")
    };
    match wants {
        Some(Wants::Gpus { .. }) if constraints.iter().any(|key| field(key).is_some()) => {
            Wants::Other(words(&constraints))
        }
        Some(wants) => wants,
        None => Wants::Other(words(&named)),
    }
}

/// The GPUs of `gpu:a100:4(S:0-1)`, `gres:gpu:4`, `gres/gpu=4`, or `gpu`, among other resources.
pub fn gpus(text: &str) -> Option<(u32, Option<String>)> {
    let mut total = 0;
    let mut gpu_type = None;
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
        let mut count = 1;
        for part in parts {
            match part.parse() {
                Ok(number) => count = number,
                Err(_) => gpu_type = Some(part.to_owned()),
            }
        }
        total += count;
    }
    (total > 0).then_some((total, gpu_type))
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

/// The columns of [`nodes`], as `sinfo -N -o` takes them.
pub const NODE: &str = "%N|%T|%G";

/// Nodes with GPUs by name.
pub fn nodes(text: &str) -> Result<HashMap<String, SeenNode>, Error> {
    let mut nodes = HashMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [name, state, gres] = fields[..] else {
            let line = line.chars().take(120).collect();
            return Err(Error::Output { command: "sinfo".into(), line });
        };
        if let Some((gpus, gpu_type)) = gpus(gres) {
            let gpu_type = gpu_type.unwrap_or_else(|| "gpu".into());
            let (status, state) = (status(state), state.to_owned());
            nodes.insert(name.to_owned(), SeenNode { gpus, gpu_type, status, state });
        }
    }
    Ok(nodes)
}

/// A node that takes no jobs is draining here, whatever its jobs do: their own rows tell.
fn status(state: &str) -> Status {
    let takes_jobs =
        ["idle", "mixed", "allocated", "completing", "planned", "mix", "alloc", "comp"];
    // `*`: it does not respond; `~`, `#`, `!`, `%`: it is off or on its way. `-`: planned by backfill.
    let base = state.trim_end_matches(['-', '+', '^', '@', '$']);
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
        assert_eq!(record.holds, [("n2".to_owned(), 4), ("n3".to_owned(), 2)]);
        assert_eq!(record.limit_s, Some(86_430.0));
        let wants = Wants::Gpus { count: 6, gpu_type: Some("a100".into()), split: Split::ANY };
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
        let row = &rows("12_3|PENDING|0|gpu,big|n[0-1]||N/A|JobHeldUser\n").unwrap()[0];
        assert_eq!((row.key.as_str(), row.stands), ("12_3", Stands::Held));
        assert_eq!((row.required.as_str(), row.nodes.as_str()), ("n[0-1]", ""));
        assert_eq!(row.partitions, ["gpu", "big"]);
        for bad in ["12|RUNNING|0", "x|RUNNING|1|gpu||||", "1|DANCING|1|gpu|a|b|c|d"] {
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
        Wants::Gpus { count, gpu_type: None, split: Split { chunk, chunks_max } }
    }

    #[test]
    fn every_way_to_ask_for_gpus_has_its_split() {
        let any = u32::MAX;
        // --gpus=6
        assert_eq!(wanted("NumNodes=1\nTresPerJob=gres:gpu:6"), gang(6, 1, any));
        // -N2 --gpus=6, and when Hither has bound it
        assert_eq!(wanted("NumNodes=2-2\nTresPerJob=gres:gpu:6"), gang(6, 3, 1));
        let bound = "ReqNodeList=n[0-1] ExcNodeList=(null)\nNumNodes=2\nTresPerJob=gres:gpu:6";
        assert_eq!(wanted(bound), gang(6, 1, any));
        // -N2 --gpus-per-node=4, --gres=gpu:4
        assert_eq!(wanted("NumNodes=2-4\nTresPerNode=gres:gpu:4"), gang(8, 4, 1));
        assert_eq!(wanted("NumNodes=1\nTresPerNode=gres/gpu:4"), gang(4, 4, 1));
        // -n6 --gpus-per-task=2, also with --ntasks-per-node=2 and with -N3
        let tasks = "NumNodes=1 NumCPUs=6 NumTasks=6 CPUs/Task=1\nTresPerTask=gres:gpu:2";
        assert_eq!(wanted(tasks), gang(12, 2, any));
        let by_two = format!("{tasks}\nSocks/Node=* NtasksPerN:B:S:C=2:0:*:* CoreSpec=*");
        assert_eq!(wanted(&by_two), gang(12, 2, 2));
        assert_eq!(wanted(&tasks.replace("NumNodes=1", "NumNodes=3")), gang(12, 4, 1));
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
        assert_eq!(other("NumNodes=4\nTresPerJob=gres:gpu:6"), "TresPerJob=gres:gpu:6 NumNodes=4");
        let odd = "NumNodes=4 NumTasks=6\nTresPerTask=gres:gpu:2";
        assert_eq!(other(odd), "TresPerTask=gres:gpu:2 NumNodes=4");
        let picky = "NumNodes=1\nFeatures=ib DelayBoot=00:00:00\nTresPerJob=gres:gpu:2";
        assert_eq!(other(picky), "Features=ib");
        let avoids = "ReqNodeList=(null) ExcNodeList=n3\nNumNodes=1\nTresPerJob=gres:gpu:2";
        assert_eq!(other(avoids), "ExcNodeList=n3");
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
        let wants = Wants::Gpus { count: 8, gpu_type: Some("a100".into()), split: Split::even(4) };
        assert_eq!(record.wants, Some(wants));
        assert_eq!((record.can_requeue, record.has_dependency), (false, false));
        assert_eq!((record.comment.as_str(), record.limit_s), ("hither: model=bert", Some(3600.0)));
    }

    #[test]
    fn nodes_and_versions() {
        let nodes =
            nodes("n0|idle|gpu:a100:4(S:0)\nn1|drained*|gpu:4\nlogin|idle|(null)\n").unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!((nodes["n0"].gpus, nodes["n0"].status), (4, Status::Up));
        assert_eq!(nodes["n1"].status, Status::Draining);
        assert_eq!(version("slurm-wlm 22.05.8"), Some((22, 5)));
        assert_eq!(version("slurm 25.11.0-0rc1"), Some((25, 11)));
        assert_eq!(version("bash"), None);
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
}
