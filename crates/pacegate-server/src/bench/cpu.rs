//! The processor time of a process on this machine.

use std::{fs, io};

/// Microseconds that all its threads have used, in its own code and in the system's.
///
/// Only Linux tells, in hundredths of a second.
pub(crate) fn micros(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    ticks(&text).map(|ticks| ticks * 10_000).ok_or_else(|| io::Error::other("it is not told"))
}

/// Fields 14 and 15. The name before them is in parentheses, and may be anything.
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
    fn the_name_of_a_process_is_not_mistaken() {
        let stat = "7 (a) 1 (b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 1 1 20 0 3 0 1 2 3";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (a) S 1"), None);
    }
}
