//! ZooKeeper's way to write values as bytes: jute.
//!
//! Numbers are big-endian. A buffer, a string and a vector begin with a length of four bytes, which is -1 for null.
//! Fields follow each other without names or marks (`BinaryInputArchive`, `BinaryOutputArchive`).

use super::error::Malformed;

/// The unread rest of a record.
///
/// No length is believed before that many bytes are there. So a record costs memory in proportion to the bytes
/// that came, whatever it claims.
#[derive(Clone, Debug)]
pub struct JuteReader<'b>(&'b [u8]);

impl<'b> JuteReader<'b> {
    /// Reads from the first of these bytes on. Bytes may be left at the end: a later version of a record has more
    /// fields.
    pub const fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub fn boolean(&mut self) -> Result<bool, Malformed> {
        Ok(self.array::<1>()? != [0])
    }

    pub fn int(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn long(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// The length of a buffer or the number of elements in a vector, 0 for null. `least`: how many bytes one
    /// element has at least.
    fn length(&mut self, least: usize) -> Result<usize, Malformed> {
        let claimed = self.int()?;
        if claimed == -1 {
            return Ok(0);
        }
        let length = usize::try_from(claimed).map_err(|_| Malformed::FieldLength(claimed))?;
        if length > self.0.len() / least {
            return Err(Malformed::FieldLength(claimed));
        }
        Ok(length)
    }

    /// A `buffer`; null reads as an empty one.
    pub fn buffer(&mut self) -> Result<&'b [u8], Malformed> {
        let length = self.length(1)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    /// A `ustring`; null reads as an empty one.
    ///
    /// Bytes that are not UTF-8 become U+FFFD. Servers refuse that character in a name (`PathUtils.validatePath`), so a
    /// changed name cannot be mistaken for another one.
    pub fn string(&mut self) -> Result<String, Malformed> {
        Ok(String::from_utf8_lossy(self.buffer()?).into_owned())
    }

    /// A `vector` of elements that `read` reads, each of which has `least` bytes or more; null reads as an empty
    /// one.
    pub fn vector<T>(
        &mut self,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let length = self.length(least.max(1))?;
        let mut elements = Vec::with_capacity(length);
        for _ in 0..length {
            elements.push(read(self)?);
        }
        Ok(elements)
    }
}

/// Appends values to bytes.
#[derive(Debug)]
pub struct JuteWriter<'b>(&'b mut Vec<u8>);

impl<'b> JuteWriter<'b> {
    pub const fn new(bytes: &'b mut Vec<u8>) -> Self {
        Self(bytes)
    }

    pub fn boolean(&mut self, value: bool) {
        self.0.push(value.into());
    }

    pub fn int(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub fn long(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// A length. If an `int` cannot hold it, the request is too long to be sent.
    fn length(&mut self, length: usize) {
        self.int(i32::try_from(length).unwrap_or(i32::MAX));
    }

    pub fn buffer(&mut self, value: &[u8]) {
        self.length(value.len());
        self.0.extend_from_slice(value);
    }

    pub fn string(&mut self, value: &str) {
        self.buffer(value.as_bytes());
    }

    /// A `ustring` that is the concatenation of two.
    pub fn joined(&mut self, first: &str, second: &str) {
        self.length(first.len() + second.len());
        self.0.extend_from_slice(first.as_bytes());
        self.0.extend_from_slice(second.as_bytes());
    }

    pub fn vector<T>(&mut self, elements: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.length(elements.len());
        for element in elements {
            write(self, element);
        }
    }
}

#[cfg(test)]
mod tests;
