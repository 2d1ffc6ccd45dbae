module github.com/pacegate/pacegate/clients/go

go 1.22
