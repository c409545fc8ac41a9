package httpapi

// ParkAfter is how long a pop waits before its connection is parked.
const ParkAfter = parkAfter

// ManagementCalls is how many calls of management routes use the database at once.
const ManagementCalls = managementCalls
