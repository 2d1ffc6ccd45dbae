//! The slots of a Redis cluster.

/// Number of slots.
pub const SLOTS: usize = 16_384;

/// Returns the slot of a key. If the key has a nonempty part in braces, only the first such part is hashed.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = || {
        let open = key.iter().position(|&byte| byte == b'{')?;
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        Some(&rest[..close]).filter(|tag| !tag.is_empty())
    };
    crc16(tag().unwrap_or(key)) % SLOTS as u16
}

/// Computes CRC-16/XMODEM, as in the cluster specification.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{foo}.bar"), 12_182);
        assert_eq!(slot_of(b"a{foo}{bar}"), 12_182);
        assert_eq!(slot_of(b"foo{}"), crc16(b"foo{}") % 16_384);
        assert_eq!(slot_of(b"foo{{bar}}"), slot_of(b"{bar"));
    }
}
