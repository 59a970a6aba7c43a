//! Kerberos by way of the C library: GSSAPI as a mechanism of SASL (RFC 4752).
//!
//! The library reads tickets and keys where it is told to (krb5.conf(5), `KRB5CCNAME`, `KRB5_CLIENT_KTNAME`) and asks
//! key distribution centers, for as long as it takes. So a [`Client`] is for a process of its own, which ends after the
//! login: what the library has allocated goes with it.

#![expect(unsafe_code, reason = "the library is written in C")]

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::slice;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GssapiFailure {
    /// It will not mend itself.
    Refused(String),
    /// No key distribution center answers.
    Unreachable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// An answer is to come.
    Next(Vec<u8>),
    /// The server has proved who it is. Its answer to this is empty if it takes the login.
    Last(Vec<u8>),
}

/// Our side of a login.
#[derive(Debug)]
pub struct Client {
    name: *mut c_void,
    context: *mut c_void,
    is_established: bool,
}

/// `gss_buffer_desc`
#[repr(C)]
struct Buffer {
    length: usize,
    value: *mut c_void,
}

/// `gss_OID_desc`
#[repr(C)]
struct Oid {
    length: u32,
    elements: *const u8,
}

/// 1.2.840.113554.1.2.1.4 (`GSS_C_NT_HOSTBASED_SERVICE`)
const HOST_BASED: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 1, 4];
/// 1.2.840.113554.1.2.2.1 (`GSS_KRB5_NT_PRINCIPAL_NAME`)
const PRINCIPAL: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2, 1];
/// 1.2.840.113554.1.2.2, Kerberos (`gss_mech_krb5`)
const KERBEROS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2];

/// `GSS_C_MUTUAL_FLAG`
const MUTUAL: u32 = 2;
/// `GSS_C_INTEG_FLAG`
const INTEGRITY: u32 = 32;
/// The part of a major status that tells of an error (`GSS_ERROR`).
const ERROR: u32 = 0xffff_0000;
/// `GSS_S_CONTINUE_NEEDED`
const CONTINUE: u32 = 1;
/// `GSS_C_GSS_CODE` and `GSS_C_MECH_CODE`
const OF_GSS: c_int = 1;
const OF_MECHANISM: c_int = 2;
/// `KRB5_KDC_UNREACH`, `KRB5_REALM_CANT_RESOLVE`, and what there is in place of these when no name server answers:
/// `KRB5_REALM_UNKNOWN` if that is to name the key distribution centers, `EAGAIN` if it is to find their addresses. So a realm
/// that does not exist is tried for as long as one that cannot be reached.
const UNREACHABLE: [u32; 4] = [
    (-1_765_328_228_i32).cast_unsigned(),
    (-1_765_328_164_i32).cast_unsigned(),
    (-1_765_328_230_i32).cast_unsigned(),
    libc::EAGAIN.cast_unsigned(),
];

/// In what a server offers and we choose: nothing is signed or encrypted after the login.
const NO_LAYER: u8 = 1;

#[link(name = "gssapi_krb5")]
unsafe extern "C" {
    fn gss_import_name(minor: *mut u32, text: *const Buffer, kind: *const Oid, name: *mut *mut c_void) -> u32;
    fn gss_init_sec_context(
        minor: *mut u32,
        credentials: *const c_void,
        context: *mut *mut c_void,
        name: *mut c_void,
        mechanism: *const Oid,
        flags: u32,
        time: u32,
        bindings: *const c_void,
        token: *const Buffer,
        actual_mechanism: *mut *mut Oid,
        answer: *mut Buffer,
        actual_flags: *mut u32,
        actual_time: *mut u32,
    ) -> u32;
    fn gss_unwrap(
        minor: *mut u32,
        context: *mut c_void,
        wrapped: *const Buffer,
        plain: *mut Buffer,
        is_encrypted: *mut c_int,
        quality: *mut u32,
    ) -> u32;
    fn gss_wrap(
        minor: *mut u32,
        context: *mut c_void,
        encrypt: c_int,
        quality: u32,
        plain: *const Buffer,
        is_encrypted: *mut c_int,
        wrapped: *mut Buffer,
    ) -> u32;
    fn gss_display_status(
        minor: *mut u32,
        status: u32,
        kind: c_int,
        mechanism: *const Oid,
        more: *mut u32,
        text: *mut Buffer,
    ) -> u32;
}

impl Client {
    /// Will log in to a service on a host. A service with a slash, such as `zookeeper/zk.example.org@EXAMPLE.ORG`, is a
    /// principal, whatever the host is called.
    pub fn new(service: &str, host: &str) -> Result<Self, GssapiFailure> {
        let (text, kind) = match service.contains('/') {
            true => (service.to_owned(), PRINCIPAL),
            false => (format!("{service}@{host}"), HOST_BASED),
        };
        let mut minor = 0;
        let mut name = null_mut();
        // SAFETY: it reads text and kind, which live on, and writes to the other two.
        let major = unsafe { gss_import_name(&raw mut minor, &given(text.as_bytes()), &oid(kind), &raw mut name) };
        check(major, minor)?;
        Ok(Self { name, context: null_mut(), is_established: false })
    }

    /// What is said next. `token`: what the server has said; empty at the beginning.
    pub fn step(&mut self, token: &[u8]) -> Result<Token, GssapiFailure> {
        if self.is_established {
            self.choose_layer(token).map(Token::Last)
        } else {
            self.establish(token).map(Token::Next)
        }
    }

    fn establish(&mut self, token: &[u8]) -> Result<Vec<u8>, GssapiFailure> {
        let (mut minor, mut flags, mut answer) = (0, 0, given(&[]));
        // SAFETY: name and context are the library's, and it takes null for each of what is not given. It reads token
        // and mechanism, which live on, and writes to the others.
        let major = unsafe {
            gss_init_sec_context(
                &raw mut minor,
                null(),
                &raw mut self.context,
                self.name,
                &oid(KERBEROS),
                MUTUAL | INTEGRITY,
                0,
                null(),
                &given(token),
                null_mut(),
                &raw mut answer,
                &raw mut flags,
                null_mut(),
            )
        };
        check(major, minor)?;
        self.is_established = major & CONTINUE == 0;
        if self.is_established && flags & MUTUAL == 0 {
            return Err(GssapiFailure::Refused("the server does not prove who it is".to_owned()));
        }
        Ok(taken(&answer))
    }

    fn choose_layer(&self, token: &[u8]) -> Result<Vec<u8>, GssapiFailure> {
        let (mut minor, mut plain) = (0, given(&[]));
        // SAFETY: the context is established. It reads token, which lives on, and takes null for what is not asked for.
        let major =
            unsafe { gss_unwrap(&raw mut minor, self.context, &given(token), &raw mut plain, null_mut(), null_mut()) };
        check(major, minor)?;
        if taken(&plain).first().is_none_or(|offered| offered & NO_LAYER == 0) {
            return Err(GssapiFailure::Refused("the server wants to sign or to encrypt what follows".to_owned()));
        }
        let (mut minor, mut wrapped) = (0, given(&[]));
        // With no other identity than that of the ticket.
        let choice = [NO_LAYER, 0, 0, 0];
        // SAFETY: as above.
        let major =
            unsafe { gss_wrap(&raw mut minor, self.context, 0, 0, &given(&choice), null_mut(), &raw mut wrapped) };
        check(major, minor)?;
        Ok(taken(&wrapped))
    }
}

/// Bytes for the library to read.
fn given(bytes: &[u8]) -> Buffer {
    Buffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

fn oid(bytes: &'static [u8]) -> Oid {
    Oid { length: u32::try_from(bytes.len()).unwrap_or(0), elements: bytes.as_ptr() }
}

/// Bytes that the library has written.
fn taken(buffer: &Buffer) -> Vec<u8> {
    if buffer.value.is_null() || buffer.length == 0 {
        return vec![];
    }
    // SAFETY: it has allocated so many bytes there, and nothing frees them.
    unsafe { slice::from_raw_parts(buffer.value.cast(), buffer.length) }.to_vec()
}

fn check(major: u32, minor: u32) -> Result<(), GssapiFailure> {
    if major & ERROR == 0 {
        return Ok(());
    }
    let why = match minor {
        0 => explained(major, OF_GSS),
        minor => explained(minor, OF_MECHANISM),
    };
    Err(if UNREACHABLE.contains(&minor) { GssapiFailure::Unreachable(why) } else { GssapiFailure::Refused(why) })
}

fn explained(status: u32, kind: c_int) -> String {
    let (mut minor, mut more, mut text) = (0, 0, given(&[]));
    // SAFETY: it reads the mechanism, which lives on, and writes to the others.
    let major =
        unsafe { gss_display_status(&raw mut minor, status, kind, &oid(KERBEROS), &raw mut more, &raw mut text) };
    match taken(&text) {
        said if major & ERROR == 0 && !said.is_empty() => String::from_utf8_lossy(&said).into_owned(),
        _ => format!("error {status:#x}"),
    }
}
