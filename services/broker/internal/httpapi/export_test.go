package httpapi

// ParkAfter is how long a pop waits before its connection is parked.
const ParkAfter = parkAfter
