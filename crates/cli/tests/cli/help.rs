//! `--help` teaches: every command shows an example, and its text fits the terminal.

use crate::{command, stdout_of};

/// The words of every command, groups of commands included.
fn commands() -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = vec![vec![]];
    let mut next = 0;
    while let Some(group) = found.get(next).cloned() {
        next += 1;
        let help = help(&group, 100);
        let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let listed = listed.take_while(|line| !line.is_empty());
        // A name stands at the second column; further lines of its description stand below that.
        let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        for name in names.filter(|name| !name.is_empty() && *name != "help") {
            found.push([&group[..], &[name.to_owned()]].concat());
        }
    }
    found
}

fn help(words: &[String], columns: usize) -> String {
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
    let output = command(&words).env("COLUMNS", columns.to_string()).output().expect("it starts");
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).expect("help is text")
}

#[test]
fn help_of_every_command_has_an_example() {
    let commands = commands();
    assert!(commands.len() > 25, "{commands:?}");
    // The main help leads on to the commands, and a group to its own.
    for command in commands.iter().filter(|words| !words.is_empty()) {
        let text = help(command, 100);
        let example = format!("  hither {}", command.join(" "));
        assert!(text.contains(&example), "no example in the help of {command:?}:\n{text}");
    }
    assert!(stdout_of(&["--help"]).contains("Exit status"));
    assert!(stdout_of(&["--version"]).starts_with("hither "));
}

/// Text that was broken by hand for one width comes out ragged at another.
#[test]
fn help_of_every_command_fits_the_terminal() {
    for words in commands() {
        for columns in [80, 100] {
            let text = help(&words, columns);
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2) {
                let told =
                    || format!("`hither {}` at {columns}:\n{}", words.join(" "), pair.join("\n"));
                let size = |text: &str| text.chars().count();
                assert!(size(pair[0]) <= columns, "too long: {}", told());
                // Examples are copied from the screen, so they must not be wrapped at all.
                let is_example = pair[0].starts_with("  hither ");
                assert!(!is_example || size(pair[0]) <= 80, "a long example: {}", told());
                let is_prose = |line: &str| line.starts_with(|c: char| !c.is_whitespace());
                let ends = pair[0].ends_with(['.', ':', ';']);
                if is_prose(pair[0]) && is_prose(pair[1]) && !ends {
                    let word = pair[1].split(' ').next().unwrap_or_default();
                    let fits = size(pair[0]) + 1 + size(word) <= columns;
                    assert!(!fits, "broken too early: {}", told());
                }
            }
        }
    }
}

/// `-h` shows what most people need; `--help` shows all, and every group has a heading.
#[test]
fn the_short_help_of_training_is_short() {
    let flags = |help: &str| {
        let output = crate::hither(&["train", help]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = text.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        names.filter(|line| !line.contains("--help") && !line.starts_with("-q")).count()
    };
    let (short, long) = (flags("-h"), flags("--help"));
    assert!((12..=20).contains(&short), "{short} options");
    assert!(long > 50, "{long} options");
}
