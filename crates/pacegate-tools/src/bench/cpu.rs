//! CPU time of a process on this machine.

use std::{fs, io};

/// Returns the user and system CPU time of all threads of a process, in microseconds.
///
/// Linux only. The resolution is 10 ms, one clock tick of `/proc`.
pub(crate) fn micros(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    ticks(&text)
        .map(|ticks| ticks * 10_000)
        .ok_or_else(|| io::Error::other("unexpected content of /proc/PID/stat"))
}

/// Adds up fields 14 (user time) and 15 (system time) of `/proc/PID/stat`, in clock ticks. The process name,
/// field 2, is in parentheses and may itself contain spaces and parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace().skip(11);
    let mut field = || fields.next()?.parse::<u64>().ok();
    Some(field()? + field()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_spaces_and_parentheses_is_skipped() {
        let stat = "7 (a) 1 (b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 1 1 20 0 3 0 1 2 3";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (a) S 1"), None);
    }
}
