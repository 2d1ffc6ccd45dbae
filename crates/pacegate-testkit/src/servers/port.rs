use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

/// A reserved port of 127.0.0.1.
///
/// The socket is bound but never listens. So the kernel does not assign its port to other sockets, neither
/// for listening nor for outgoing connections, but a server can bind to it by number. It stays reserved while
/// the server is down.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _bound: OwnedFd,
}

impl Port {
    /// Reserves a free port.
    ///
    /// # Panics
    ///
    /// Panics if there is none.
    pub fn reserve() -> Self {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&socket, true).expect("set SO_REUSEADDR");
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = getsockname(&socket).expect("a bound socket");
        let address = SocketAddrV4::try_from(address).expect("an IPv4 address");
        Self { number: address.port(), _bound: socket }
    }

    /// Returns the port number.
    pub fn number(&self) -> u16 {
        self.number
    }
}
