//! The functions `struct.pack` and `struct.unpack` that Redis adds to Lua, for the formats that our scripts use:
//! `<` and `>`, `I` and `i` with a size, and `c` with a size.

use mlua::{Error, Lua, LuaString, MultiValue, Result, Table, Value};

/// One item of a format.
#[derive(Clone, Copy)]
enum Item {
    Integer { size: usize, is_signed: bool, is_little: bool },
    Bytes(usize),
}

/// Creates the table `struct`.
pub(super) fn table(lua: &Lua) -> Result<Table> {
    let table = lua.create_table()?;
    table.set("pack", lua.create_function(pack)?)?;
    table.set("unpack", lua.create_function(unpack)?)?;
    Ok(table)
}

fn parse(format: &[u8]) -> Result<Vec<Item>> {
    let (mut items, mut is_little, mut place) = (Vec::new(), true, 0);
    while place < format.len() {
        let kind = format[place];
        place += 1;
        let digits = format[place..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let size = std::str::from_utf8(&format[place..place + digits]).ok();
        let size = size.and_then(|digits| digits.parse::<usize>().ok());
        place += digits;
        match (kind, size) {
            (b'<', None) => is_little = true,
            (b'>', None) => is_little = false,
            (b'I' | b'i', Some(size @ 1..=8)) => {
                items.push(Item::Integer { size, is_signed: kind == b'i', is_little });
            }
            (b'c', Some(size @ 1..)) => items.push(Item::Bytes(size)),
            _ => return Err(Error::runtime("the model does not support this format")),
        }
    }
    Ok(items)
}

fn pack(lua: &Lua, (format, mut values): (LuaString, MultiValue)) -> Result<LuaString> {
    let mut bytes = Vec::new();
    for item in parse(&format.as_bytes())? {
        let value = values.pop_front().unwrap_or(Value::Nil);
        match item {
            Item::Integer { size, is_little, .. } => {
                let number = lua.coerce_number(value)?;
                let number = number.ok_or_else(|| Error::runtime("number expected"))?;
                // As in C: through a signed integer if negative.
                let word =
                    if number < 0.0 { (number as i64).cast_unsigned() } else { number as u64 };
                let word = word.to_le_bytes();
                match is_little {
                    true => bytes.extend_from_slice(&word[..size]),
                    false => bytes.extend(word[..size].iter().rev()),
                }
            }
            Item::Bytes(size) => {
                let text = lua.coerce_string(value)?;
                let text = text.ok_or_else(|| Error::runtime("string expected"))?;
                let text = text.as_bytes();
                let part = text.get(..size).ok_or_else(|| Error::runtime("string too short"))?;
                bytes.extend_from_slice(part);
            }
        }
    }
    lua.create_string(bytes)
}

/// Returns the values, then the position after them.
fn unpack(
    lua: &Lua,
    (format, data, start): (LuaString, LuaString, Option<f64>),
) -> Result<MultiValue> {
    let data = data.as_bytes();
    let mut place = start.map_or(0, |start| start as usize - 1);
    let mut values = MultiValue::new();
    for item in parse(&format.as_bytes())? {
        let size = match item {
            Item::Integer { size, .. } | Item::Bytes(size) => size,
        };
        let part = data.get(place..place + size);
        let part = part.ok_or_else(|| Error::runtime("data string too short"))?;
        place += size;
        values.push_back(match item {
            Item::Bytes(_) => Value::String(lua.create_string(part)?),
            Item::Integer { is_signed, is_little, .. } => {
                Value::Number(number(part, is_signed, is_little))
            }
        });
    }
    values.push_back(Value::Number((place + 1) as f64));
    Ok(values)
}

fn number(part: &[u8], is_signed: bool, is_little: bool) -> f64 {
    let mut bytes = [0; 8];
    bytes[..part.len()].copy_from_slice(part);
    if !is_little {
        bytes[..part.len()].reverse();
    }
    let word = u64::from_le_bytes(bytes);
    let unused = 64 - 8 * part.len();
    match is_signed {
        true => ((word << unused).cast_signed() >> unused) as f64,
        false => word as f64,
    }
}
