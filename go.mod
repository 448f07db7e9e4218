module smartcookie

go 1.26.0
